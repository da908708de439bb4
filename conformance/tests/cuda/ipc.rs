//! Memory of another process, opened by the raw handle that the process made: `cudaIpcMemHandle_t`, `hipIpcMemHandle_t`.
//!
//! The other process is this program again, with the raw API alone.
//!
//! # Safety
//! That of `application.rs`; the other process keeps its memory until it is told to end.

#![allow(clippy::undocumented_unsafe_blocks, reason = "one reason, above, for all raw calls")]

use super::{
    application::{App, everywhere, flavor_of},
    foreign::adder,
    *,
};
use onebuf::prelude::*;
use onebuf_conformance::{Hardware, reported};
use onebuf_sys::cuda_like::{DevicePtr, IpcHandle};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
};

/// Handles cover whole blocks.
const WORDS: usize = 1 << 20;
/// The word at which the opened part begins.
const FIRST: usize = 4096;
const PART: usize = N;

/// The other process: allocates, prints the handle, waits for a line, and checks what was added.
#[test]
#[ignore = "started by the test below"]
fn the_other_process() {
    let (Ok(api), library) = (env::var("ONEBUF_TEST_API"), env::var("ONEBUF_TEST_LIBRARY").ok())
    else {
        return note("skip: the other process of an IPC test: it is started by that test");
    };
    let app = App::new(flavor_of(&api), library.as_deref(), 0);
    let mut model = random_words(5, WORDS);
    let at = app.call(|table| unsafe { table.alloc(WORDS * 4) });
    app.put(at.0, &model);
    let IpcHandle(handle) = app.call(|table| unsafe { table.ipc_handle(at) });
    let text: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nhandle {text}");
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    model[FIRST..][..PART].iter_mut().for_each(|word| *word = word.wrapping_add(3));
    assert_same(&app.words(at.0, WORDS), &model, "what the first process wrote");
    app.call(|table| unsafe { table.free(DevicePtr(at.0)) });
    println!("\nchecked");
}

/// Ends the other process if the test fails.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

fn start(device: &Device) -> Other {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "ipc::the_other_process", "--ignored", "--nocapture"]);
    command.env("ONEBUF_TEST_API", device.info().api.0);
    if device.info().name.contains("stub") {
        command.env("ONEBUF_TEST_LIBRARY", cuda_stub().unwrap());
    }
    Other(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

/// Reads lines until one begins with `word`; returns its rest.
fn said(lines: &mut impl Iterator<Item = std::io::Result<String>>, word: &str) -> String {
    let rest = lines.find_map(|line| Some(line.ok()?.strip_prefix(word)?.trim().to_owned()));
    rest.unwrap_or_else(|| panic!("the other process ended without `{word}`"))
}

/// Whether the driver has handles for other processes, by its symbols; onebuf must find them.
fn has_handles(device: &Device, app: &App) -> bool {
    let driver = app.table.has_ipc_handle() && app.table.has_open_ipc();
    let what = format!("handles for other processes of {device}");
    reported(&what, &[Hardware::Nvidia], driver.into(), device.info().caps.ipc.into())
}

#[test]
fn memory_of_another_process_is_used_by_its_handle() {
    everywhere(|hub, device, app| {
        if !has_handles(device, app) {
            return;
        }
        let mut other = start(device);
        let mut lines = BufReader::new(other.0.stdout.take().unwrap()).lines();
        let text = said(&mut lines, "handle ");
        let handle: [u8; 64] =
            std::array::from_fn(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap());
        let (queue, kernel) = (device.queue().unwrap(), adder(device));
        // SAFETY: the other process keeps the memory, and does not use it meanwhile.
        let buffer: Buffer<u32> =
            unsafe { hub.open_ipc_handle(device, &handle, FIRST * 4, PART) }.unwrap();
        let model = random_words(5, WORDS);
        assert_same(&buffer.to_vec().unwrap(), &model[FIRST..][..PART], "their words");
        queue.launch(&kernel, [PART], args![buffer.write_on(&queue).unwrap(), 3u32]).unwrap();
        queue.finish().unwrap();
        drop(buffer);
        // SAFETY: as above; refused.
        let beyond = unsafe { hub.open_ipc_handle::<u32>(device, &handle, 4, WORDS) };
        assert!(matches!(beyond, Err(Error::InvalidArgument { .. })), "{:?}", beyond.map(drop));
        writeln!(other.0.stdin.take().unwrap()).unwrap();
        said(&mut lines, "checked");
        assert!(other.0.wait().unwrap().success());
    });
}

/// Drivers refuse a handle in the process that made it.
#[test]
fn a_handle_of_this_process_is_refused() {
    everywhere(|hub, device, app| {
        if !has_handles(device, app) {
            return;
        }
        let at = app.call(|table| unsafe { table.alloc(WORDS * 4) });
        let IpcHandle(handle) = app.call(|table| unsafe { table.ipc_handle(at) });
        // SAFETY: a live handle, which is refused.
        let refused = unsafe { hub.open_ipc_handle::<u32>(device, &handle, 0, WORDS) };
        assert!(refused.is_err(), "opened");
        app.call(|table| unsafe { table.free(at) });
    });
}
