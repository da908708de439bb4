//! wgpu's errors as onebuf's, instead of a panic in wgpu's default handler.

use onebuf::{Error, Result};
use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

const FILTERS: [wgpu::ErrorFilter; 3] =
    [wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Internal];

/// Makes calls of wgpu. An error that they cause is returned.
pub(crate) fn caught<R>(
    device: &wgpu::Device,
    call: &'static str,
    work: impl FnOnce() -> R,
) -> Result<R> {
    let scopes = FILTERS.map(|filter| device.push_error_scope(filter));
    let made = work();
    // The scope that was pushed last is popped first.
    let errors = scopes.into_iter().rev().filter_map(|scope| now(scope.pop()).flatten());
    match errors.collect::<Vec<_>>().into_iter().next() {
        None => Ok(made),
        Some(wgpu::Error::OutOfMemory { .. }) => {
            let (device, asked, limit) = (call.to_owned(), 0, None);
            Err(Error::OutOfMemory { device, asked, limit })
        }
        Some(error) => {
            let name = error.to_string();
            Err(Error::Driver { api: "wgpu", call, code: 0, name })
        }
    }
}

/// The result of a future that is ready, as all of wgpu's native backends are.
pub(crate) fn now<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
