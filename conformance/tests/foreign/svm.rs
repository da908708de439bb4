//! Shared virtual memory that class A allocated.

use super::{alone, context, hub, owners};
use onebuf::{Buffer, Error, Hub, prelude::*};
use onebuf_conformance::{
    Side, Step, assert_same,
    class_a::{ClassA, Svm},
    note, random_words, step_model,
};

const N: usize = 3000;

fn wrapped(hub: &Hub, a: &ClassA, svm: &Svm) -> Buffer<u32> {
    // SAFETY: N words of class A's context, alive as long as `svm`; class A does nothing meanwhile.
    unsafe { hub.wrap_svm(&context(hub, a), svm.pointer.cast(), N) }.build().unwrap()
}

#[test]
fn shared_virtual_memory_of_class_a() {
    let _alone = alone("foreign shared virtual memory");
    for a in owners() {
        let hub = hub();
        let Some(svm) = a.svm(4 * N) else {
            note(&format!("skip: foreign shared virtual memory: {} has none", a.platform));
            continue;
        };
        let counts = || {
            a.clear_svm(&a.queue, &svm);
            a.reference_counts(&[], &[])
        };
        let before = counts();
        let mut model = random_words(1, N);
        {
            let (side, buffer) =
                (Side::open(&context(&hub, &a).device()).unwrap(), wrapped(&hub, &a, &svm));
            buffer.write(&model).unwrap();
            side.step(&buffer, Step::nth(1)).unwrap();
            step_model(&mut model, Step::nth(1));
            let map = buffer.map().unwrap();
            assert_same(&map, &model, &a.platform);
            assert_eq!(map.as_ptr().addr(), svm.pointer.addr().get(), "{}: in place", a.platform);
            let again = wrapped(&hub, &a, &svm);
            assert!(matches!(again.map_mut(), Err(Error::Busy { .. })), "{}", a.platform);
            drop(map);
            side.step(&again, Step::nth(2)).unwrap();
            step_model(&mut model, Step::nth(2));
            assert_same(&buffer.to_vec().unwrap(), &model, &a.platform);
        }
        drop(hub);
        onebuf_conformance::class_a::assert_restored(&before, counts, &a.platform);
        drop(svm);
    }
}

#[test]
fn wrong_shared_virtual_memory() {
    let _alone = alone("wrong shared virtual memory");
    let hub = hub();
    for a in owners() {
        let mut words = [0u32; 8];
        let at = std::ptr::NonNull::from(&mut words).cast::<u32>();
        let svm = a.svm(4 * N);
        let pointer = svm.as_ref().map_or(at, |svm| svm.pointer.cast());
        // SAFETY: refused before the memory is touched.
        let nothing = unsafe { hub.wrap_svm::<u32>(&context(&hub, &a), pointer, 0) }.build();
        match (&svm, nothing) {
            (Some(_), Err(Error::InvalidArgument(why))) => {
                assert!(why.contains("0 bytes"), "{why}")
            }
            (None, Err(Error::Unsupported { .. })) => {}
            (_, other) => panic!("{}: {other:?}", a.platform),
        }
    }
}
