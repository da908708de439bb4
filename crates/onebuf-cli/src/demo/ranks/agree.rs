//! Agreement: every rank learns whether all ranks got here.

use super::host;
use crate::out::{Failure, Result};
use onebuf_mpi::World;
use std::time::Duration;

/// The longest message of failed ranks.
const TEXT_BYTES: usize = 2048;

/// How long a rank that has failed waits to tell the others.
const FAREWELL: Duration = Duration::from_secs(5);

/// All ranks call it. If one has failed, none goes on: that one keeps its own message, and the others get it.
pub fn agreed<T>(world: &World, outcome: Result<T>) -> Result<T> {
    if outcome.is_err() && world.has_failed() {
        return outcome;
    }
    match (exchange(world, outcome.as_ref().err()), outcome) {
        (_, Err(own)) => Err(own),
        (Err(lost), Ok(_)) => Err(lost),
        (Ok(others), Ok(_)) if !others.is_empty() => Err(Failure::new(others)),
        (Ok(_), Ok(done)) => Ok(done),
    }
}

/// The messages of the ranks that have failed, the same on all ranks.
fn exchange(world: &World, own: Option<&Failure>) -> Result<String> {
    let timeout = if own.is_some() { FAREWELL.min(world.timeout()) } else { world.timeout() };
    let text = own.map(ToString::to_string).unwrap_or_default();
    let all = world.collect(text.into_bytes(), 0, timeout)?;
    let shared = host()?.buffer::<u8>(TEXT_BYTES).build()?;
    if let Some(all) = all {
        shared.write(&page(&all))?;
    }
    world.broadcast(&shared, 0)?.wait(timeout)?;
    let bytes = shared.to_vec()?;
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// What the ranks say, one after another, cut and padded with zeros.
fn page(all: &[Vec<u8>]) -> Vec<u8> {
    let said = all.iter().enumerate().filter(|(_, text)| !text.is_empty());
    let said = said.map(|(rank, text)| format!("rank {rank}: {}", String::from_utf8_lossy(text)));
    let mut page = said.collect::<Vec<_>>().join("; ").into_bytes();
    page.resize(TEXT_BYTES, 0);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_the_ranks_that_failed() {
        let text = |all: &[&str]| {
            let all: Vec<Vec<u8>> = all.iter().map(|text| text.as_bytes().to_vec()).collect();
            let page = page(&all);
            assert_eq!(page.len(), TEXT_BYTES);
            String::from_utf8_lossy(&page).trim_end_matches('\0').to_owned()
        };
        assert_eq!(text(&["", ""]), "");
        assert_eq!(text(&["", "no file", "", "no device"]), "rank 1: no file; rank 3: no device");
        assert_eq!(text(&[&"x".repeat(3 * TEXT_BYTES)]).len(), TEXT_BYTES);
    }
}
