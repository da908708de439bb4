//! Pooled buffers of one device: each use of an allocation behaves like a new buffer of its own length.

use crate::{Ending, Side, Step, Trial, assert_same, random_words, step_model};
use onebuf::{
    Access, Buffer, BufferBuilder, Error, Hub, MemoryKind, NativeArgs, Pool, Result, Signature,
    Source, args,
};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Different lengths of one size class: 40960 bytes.
const LENGTHS: [usize; 4] = [10_000, 9_000, 9_997, 9_001];

fn request<'i>(
    hub: &'i Hub,
    side: &Side,
    memory_kind: MemoryKind,
    n: usize,
) -> BufferBuilder<'i, u32> {
    let request = hub.buffer::<u32>(n).shared_with([&side.device]).allocate_on(&side.device);
    request.memory_kind(memory_kind)
}

/// Runs a check on each device and each of its memory kinds. The text names both.
fn each(t: &Trial<'_>, check: impl Fn(&Side, MemoryKind, &str)) {
    for side in t.sides() {
        for &memory_kind in &side.device.info().caps.memory_kinds {
            let what = format!("{} {memory_kind}", side.device);
            t.on(&[side], memory_kind, || check(side, memory_kind, &what));
        }
    }
}

fn refused<T>(outcome: Result<T>, what: &str) {
    assert!(matches!(outcome, Err(Error::InvalidArgument(_))), "{what}: not refused");
}

pub fn every_page_of_every_life(t: &Trial<'_>) {
    each(t, |side, memory_kind, what| {
        let pool = Pool::new(t.hub());
        for (life, n) in (1..).zip(LENGTHS) {
            let buffer = pool.get(&request(t.hub(), side, memory_kind, n)).unwrap();
            let what = format!("{what}, life {life}");
            assert_eq!((buffer.len(), buffer.size_bytes()), (n, n * 4), "{what}");
            let mut model = random_words(life, n);
            buffer.write(&model).unwrap();
            side.step(&buffer, Step::nth(life as u32)).unwrap();
            step_model(&mut model, Step::nth(life as u32));
            assert_same(&buffer.to_vec().unwrap(), &model, &what);
            assert_same(&side.look(&buffer).unwrap(), &model, &what);
            assert_same(&buffer.map().unwrap(), &model, &what);
        }
        let statistics = pool.statistics();
        assert_eq!((statistics.made, statistics.hits), (1, 3), "{what}: one memory for all");
    });
}

/// The negative control: the check above detects contents of the previous use.
pub fn a_life_that_writes_nothing_is_noticed(t: &Trial<'_>) {
    each(t, |side, memory_kind, what| {
        let pool = Pool::new(t.hub());
        let n = LENGTHS[0];
        pool.get(&request(t.hub(), side, memory_kind, n).init(random_words(1, n))).unwrap();
        let again = pool.get(&request(t.hub(), side, memory_kind, n)).unwrap();
        let seen = again.to_vec().unwrap();
        assert_same(&seen, &random_words(1, n), &format!("{what}: what was left"));
        let check = || assert_same(&seen, &random_words(2, n), "stale");
        assert!(catch_unwind(AssertUnwindSafe(check)).is_err(), "{what}");
        drop(again);
        let cleared = pool.get_cleared(&request(t.hub(), side, memory_kind, n)).unwrap();
        assert_same(&cleared.to_vec().unwrap(), &vec![0; n], what);
        drop(cleared);
        let model = random_words(3, n);
        let filled = pool.get(&request(t.hub(), side, memory_kind, n).init(&model[..])).unwrap();
        assert_same(&filled.to_vec().unwrap(), &model, what);
    });
}

/// A short use neither sees nor changes the bytes behind its end.
pub fn a_short_life_ends_where_it_says(t: &Trial<'_>) {
    each(t, |side, memory_kind, what| {
        let (pool, [long, short, ..]) = (Pool::new(t.hub()), LENGTHS);
        let model = random_words(4, long);
        pool.get(&request(t.hub(), side, memory_kind, long).init(&model[..])).unwrap();
        let buffer = pool.get(&request(t.hub(), side, memory_kind, short)).unwrap();
        buffer.fill(1).unwrap();
        buffer.write(&vec![2; short]).unwrap();
        buffer.map_mut().unwrap().fill(3);
        drop(buffer.write_async(.., vec![4; short]).unwrap());
        side.step(&buffer, Step { mul: 1, add: 0 }).unwrap();
        beyond(side, &buffer, what);
        drop(buffer);
        let buffer = pool.get(&request(t.hub(), side, memory_kind, long)).unwrap();
        let seen = buffer.to_vec().unwrap();
        assert_same(&seen[short..], &model[short..], &format!("{what}: behind the end"));
        let mut filled = vec![4; short];
        step_model(&mut filled, Step { mul: 1, add: 0 });
        assert_same(&seen[..short], &filled, what);
        assert_eq!(pool.statistics().made, 1, "{what}");
    });
}

fn beyond(side: &Side, buffer: &Buffer<u32>, what: &str) {
    let n = buffer.len();
    refused(buffer.read_range(..=n, &mut vec![0; n + 1]), what);
    refused(buffer.write_range(n.., &[1]), what);
    refused(buffer.fill_range(n..n + 1, 1), what);
    refused(buffer.sub_buffer(..=n, Access::Read), what);
    refused(buffer.copy_from(n, buffer, ..1), what);
    refused(side.step_range(buffer, 0, n + 1, Step { mul: 1, add: 0 }), what);
}

/// Native kernels get slices, which end where this use ends.
pub fn kernels_see_the_length_of_this_life(t: &Trial<'_>) {
    let lengths = |args: &mut NativeArgs<'_>| {
        let slice = args.slice_mut::<u32>(0)?;
        slice[0] = slice.len() as u32;
        Ok(())
    };
    let source = Source::default().with_native("lengths", lengths);
    t.each_device(|side| {
        let program = match side.device.program(&source) {
            Err(Error::Unsupported { .. }) => {
                return Ending::not_applicable("its kernels are not functions of this process");
            }
            built => built.unwrap(),
        };
        let signature = Signature::new().buffer::<u32>(Access::ReadWrite);
        // SAFETY: `NativeArgs` keeps the function in bounds and to its declared access.
        let kernel = unsafe { program.kernel("lengths", signature) }.unwrap();
        let pool = Pool::new(t.hub());
        for n in LENGTHS {
            let request = t.hub().buffer::<u32>(n).shared_with([&side.device]);
            let buffer = pool.get(&request).unwrap();
            // The second time with a lease.
            for _ in 0..2 {
                let view = buffer.write_on(&side.queue).unwrap();
                side.queue.launch(&kernel, [1], args![view]).unwrap();
                assert_eq!(buffer.to_vec().unwrap()[0], n as u32, "{}", side.device);
            }
            let half = buffer.sub_buffer(4096.., Access::ReadWrite).unwrap();
            let view = half.write_on(&side.queue).unwrap();
            side.queue.launch(&kernel, [1], args![view]).unwrap();
            assert_eq!(buffer.to_vec().unwrap()[4096], n as u32 - 4096, "{}", side.device);
        }
        assert_eq!(pool.statistics().made, 1, "{}", side.device);
        Ending::Passed
    });
}
