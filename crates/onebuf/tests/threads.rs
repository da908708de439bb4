//! The types that can move between threads or be shared by them, and the check that `docs/threads.md` agrees.
#![cfg(not(onebuf_shuttle))]

use onebuf::{
    Arg, Buffer, BufferBuilder, Device, Error, Fence, Hub, Kernel, Ledger, Map, MapMut, NativeArgs,
    Pending, Pool, PoolStatistics, Profile, Program, Queue, QueuePool, ReadView, Source, SubBuffer,
    WriteBatch, WriteView,
    doctor::Doctor,
    plan::Plan,
    pool::{Block, FreeLists, Fresh},
    topology::Topology,
};
use std::{collections::BTreeMap, fs, path::Path};

/// Whether a type has an auto trait. The inherent constant, if it applies, hides the trait's.
macro_rules! is {
    ($type:ty: $bound:ident) => {{
        #[allow(dead_code)]
        struct Probe<T: ?Sized>(std::marker::PhantomData<T>);
        #[allow(dead_code)]
        impl<T: ?Sized + $bound> Probe<T> {
            const IS: bool = true;
        }
        #[allow(dead_code)]
        trait Otherwise {
            const IS: bool = false;
        }
        impl<T: ?Sized> Otherwise for Probe<T> {}
        <Probe<$type>>::IS
    }};
}

/// Each type by its name in the table, and whether it is `Send` and `Sync`.
macro_rules! facts {
    ($($name:literal: $type:ty),* $(,)?) => {
        [$(($name, is!($type: Send), is!($type: Sync))),*]
    };
}

const FACTS: [(&str, bool, bool); 30] = facts! {
    "Hub": Hub,
    "Device": Device,
    "Queue": Queue,
    "QueuePool": QueuePool,
    "Program": Program,
    "Kernel": Kernel,
    "Source": Source,
    "Buffer<T>": Buffer<f32>,
    "BufferBuilder<T>": BufferBuilder<'static, f32>,
    "SubBuffer<T>": SubBuffer<'static, f32>,
    "ReadView<T>": ReadView<'static, f32>,
    "WriteView<T>": WriteView<'static, f32>,
    "Map<T>": Map<'static, f32>,
    "MapMut<T>": MapMut<'static, f32>,
    "Pending<T>": Pending<f32>,
    "WriteBatch<T>": WriteBatch<'static, f32>,
    "Fence": Fence,
    "Arg": Arg<'static>,
    "NativeArgs": NativeArgs<'static>,
    "Pool": Pool,
    "PoolStatistics": PoolStatistics,
    "Block": Block,
    "Fresh": Fresh,
    "FreeLists": FreeLists<Fresh>,
    "Profile": Profile,
    "Ledger": Ledger,
    "Topology": Topology,
    "Plan": Plan,
    "Doctor": Doctor,
    "Error": Error,
};

/// Callers rely on these: a change here is a breaking change.
#[test]
fn everything_but_a_kernels_arguments_is_send_and_sync() {
    for (name, send, sync) in FACTS {
        let expected = match name {
            "NativeArgs" => (false, false),
            "Arg" => (true, false),
            _ => (true, true),
        };
        assert_eq!((send, sync), expected, "{name}");
    }
}

/// Buffers inherit the element type's `Send` and `Sync`.
#[test]
fn elements_decide_for_their_buffers() {
    #[derive(Clone, Copy)]
    #[repr(transparent)]
    struct Rooted(#[allow(dead_code)] u32, std::marker::PhantomData<*const ()>);
    // SAFETY: a number and a zero-sized marker; all bits are valid.
    unsafe impl onebuf::bytemuck::Zeroable for Rooted {}
    // SAFETY: as above; no padding.
    unsafe impl onebuf::bytemuck::Pod for Rooted {}
    let facts = facts! {
        "buffer": Buffer<Rooted>,
        "view": WriteView<'static, Rooted>,
        "map": MapMut<'static, Rooted>,
        "pending": Pending<Rooted>,
        "batch": WriteBatch<'static, Rooted>,
    };
    for (name, send, sync) in facts {
        assert_eq!((send, sync), (false, false), "{name}");
    }
}

#[test]
fn the_table_says_the_same() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/threads.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let written = table(&text);
    let facts: BTreeMap<_, _> =
        FACTS.iter().map(|&(name, send, sync)| (name, (send, sync))).collect();
    assert_eq!(written, facts, "docs/threads.md on the left, the types on the right");
}

/// The rows `| `type` | yes | no | why |`.
fn table(text: &str) -> BTreeMap<&str, (bool, bool)> {
    let row = |line| {
        let [_, name, send, sync, why, _] = str::split(line, '|').collect::<Vec<_>>()[..] else {
            panic!("not a row of four: {line}");
        };
        assert!(!why.trim().is_empty(), "no reason: {line}");
        let answer = |cell: &str| match cell.trim() {
            "yes" => true,
            "no" => false,
            other => panic!("neither yes nor no: {other}"),
        };
        (name.trim().trim_matches('`'), (answer(send), answer(sync)))
    };
    text.lines().filter(|line| line.starts_with("| `")).map(row).collect()
}
