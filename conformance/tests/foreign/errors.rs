//! What is refused, with which message; and that a refusal changes nothing.

use super::{alone, context, hub, owners, query::counts_maps, queue, twin, wrap, wrapped};
use onebuf::{Access, Error, MemoryKind, RouteKind, args, prelude::*};
use onebuf_conformance::{
    Side, Step, assert_same,
    class_a::{ClassA, Own, assert_restored},
    note, random_words, step_model,
};
use onebuf_sys::opencl::{
    ClMem,
    consts::{CL_MEM_HOST_NO_ACCESS, CL_MEM_READ_ONLY, CL_MEM_READ_WRITE},
};

const N: usize = 3000;

#[test]
fn a_hub_without_opencl_says_so() {
    let _alone = alone("no OpenCL");
    let Some(a) = owners().pop() else { return };
    let hub = onebuf::builder()
        .without(["opencl", "vulkan", "gl"])
        .verdicts(Default::default())
        .build()
        .unwrap();
    let mem = a.words(&[0; N]);
    let before = a.reference_counts(&[&mem], &[]);
    let refused = wrap(&hub, &mem).build();
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    // SAFETY: class A holds references.
    let (context, queue) =
        unsafe { (hub.foreign_context(a.context.raw()), hub.wrap_queue(a.queue.raw())) };
    assert!(matches!(context, Err(Error::Unavailable { .. })), "{context:?}");
    assert!(matches!(queue, Err(Error::Unavailable { .. })), "{queue:?}");
    assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
}

#[test]
fn devices_of_another_hub_are_refused() {
    let _alone = alone("two hubs");
    let (one, two) = (hub(), hub());
    for a in owners() {
        let mem = a.words(&[0; N]);
        let before = a.reference_counts(&[&mem], &[]);
        let refused = wrap(&one, &mem).shared_with([&twin(&two, &a)]).build();
        let Err(Error::InvalidArgument(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("another hub"), "{why}");
        let buffer = wrapped(&one, &mem);
        assert!(two.queue_for(&buffer).is_err());
        let others = context(&two, &a).device().queue().unwrap();
        let refused = buffer.read_on(&others).map(drop);
        assert!(matches!(refused, Err(Error::ForeignContext { .. })), "{refused:?}");
        drop(others);
        // Two hubs in one context: each has its own devices and references.
        assert_same(&wrapped(&two, &mem).to_vec().unwrap(), &[0; N], &a.platform);
        drop(buffer);
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
    }
}

#[test]
fn another_context_is_named() {
    let _alone = alone("two contexts");
    for a in owners() {
        let (b, hub) = (a.sibling(), hub());
        let mut model = random_words(1, N);
        let mem = a.words(&model);
        let before = a.reference_counts(&[&mem], &[]);
        let (ours, theirs) = (context(&hub, &a).device(), context(&hub, &b).device());
        assert_ne!(ours.id(), theirs.id());
        assert!(ours.id().contains('@') && theirs.id().contains('@'), "{ours} {theirs}");
        let (side, other) = (Side::open(&ours).unwrap(), Side::open(&theirs).unwrap());
        let buffer = wrapped(&hub, &mem);
        let refused = buffer.write_on(&other.queue).map(drop);
        let Err(Error::NotShared { device, shared_with }) = refused else { panic!("{refused:?}") };
        assert_eq!(device, theirs.id());
        assert!(shared_with.contains(ours.id()), "{shared_with}");
        // A kernel of one context on a queue of the other.
        let view = buffer.write_on(&side.queue).unwrap();
        let arguments = onebuf::args![view, 0u32, N as u32, 3u32, 1u32];
        let refused = side.queue.launch(other.kernel(), [N], arguments);
        let Err(Error::ForeignContext { have, want }) = refused else { panic!("{refused:?}") };
        assert!(have.contains(theirs.id()) && want.contains(ours.id()), "{have}; {want}");
        // Waiting needs no common context: one owner's queue may wait for the other's work.
        other.queue.wait_for(&side.queue.fence()).unwrap();
        queue(&hub, &b.queue).wait_for(&queue(&hub, &a.queue).fence()).unwrap();
        side.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        assert_same(&buffer.to_vec().unwrap(), &model, &a.platform);
        drop((buffer, side, other, ours, theirs, b, hub));
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
    }
}

#[test]
fn memory_that_its_owner_has_mapped_is_busy() {
    let _alone = alone("mapped memory");
    let hub = hub();
    for a in owners() {
        let mem = a.words(&[7; N]);
        let before = a.reference_counts(&[&mem], &[]);
        let mapped = a.map(&a.queue, &mem, 4 * N);
        if !counts_maps(&a) {
            note(&format!("skip: mapped memory: {} does not say that it is", a.platform));
            a.unmap(&a.queue, &mem, mapped);
            continue;
        }
        let refused = wrap(&hub, &mem).build();
        let Err(Error::Busy { what }) = refused else { panic!("{}: {refused:?}", a.platform) };
        assert!(what.contains("unmap"), "{what}");
        a.unmap(&a.queue, &mem, mapped);
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
        assert_same(&wrapped(&hub, &mem).to_vec().unwrap(), &[7; N], &a.platform);
    }
}

#[test]
fn our_maps_are_not_the_owners() {
    let _alone = alone("maps of ours");
    let hub = hub();
    for a in owners() {
        let mem = a.words(&[7; N]);
        let buffer = wrapped(&hub, &mem);
        let map = buffer.map().unwrap();
        // The map is ours, so a second wrap is allowed, and its readers coexist with the map.
        let again = wrapped(&hub, &mem);
        assert_same(&again.map().unwrap(), &map, &a.platform);
        // The owner's work cannot be reported while a map is held.
        let owners = queue(&hub, &a.queue);
        let refused = buffer.written_until(&owners.fence());
        assert!(matches!(refused, Err(Error::Busy { .. })), "{}: {refused:?}", a.platform);
        drop(map);
        buffer.hand_to(&owners).unwrap();
        buffer.written_until(&owners.fence()).unwrap();
    }
}

#[test]
fn flags_of_the_owner_are_kept_to() {
    let _alone = alone("the owner's flags");
    let hub = hub();
    for a in owners() {
        let side = Side::open(&context(&hub, &a).device()).unwrap();
        // SAFETY: no host pointer.
        let read_only = unsafe { a.buffer(CL_MEM_READ_ONLY, 4 * N, std::ptr::null_mut()) };
        let buffer = wrapped(&hub, &read_only);
        let refused = side.step(&buffer, Step::nth(1));
        let Err(Error::InvalidArgument(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("made for read"), "{why}");
        buffer.write(&[1; N]).unwrap();
        assert_same(&a.read(&a.queue, &read_only, N), &[1; N], &a.platform);
        if side.device.info().version.starts_with("OpenCL 1.1") {
            continue; // It has no flags for the host.
        }
        let flags = CL_MEM_READ_WRITE | CL_MEM_HOST_NO_ACCESS;
        // SAFETY: no host pointer.
        let no_host = unsafe { a.buffer(flags, 4 * N, std::ptr::null_mut()) };
        let buffer = wrapped(&hub, &no_host);
        for refused in [buffer.to_vec().map(drop), buffer.map().map(drop), buffer.write(&[1; N])] {
            let text = refused.expect_err("the host has no access").to_string();
            assert!(text.contains("host"), "{text}");
        }
        buffer.fill(5).unwrap();
        let other = hub.buffer::<u32>(N).shared_with([&side.device]).build().unwrap();
        other.copy_from(0, &buffer, ..).unwrap();
        assert_same(&other.to_vec().unwrap(), &[5; N], &a.platform);
    }
}

#[test]
fn regions_of_a_part_are_refused_and_of_a_whole_allowed() {
    let _alone = alone("regions");
    let hub = hub();
    for a in owners() {
        let mem = a.words(&[0; N]);
        let part = a.sub_buffer(&mem, CL_MEM_READ_WRITE, 0, 8192);
        let (whole, window) = (wrapped(&hub, &mem), wrapped(&hub, &part));
        assert!(whole.sub_buffer(..1024, Access::Read).is_ok(), "{}", a.platform);
        // OpenCL has no sub-buffers of sub-buffers; onebuf refuses them itself, not by a driver's error.
        if let Err(error) = window.sub_buffer(..1024, Access::Read) {
            assert!(!matches!(error, Error::Driver { .. }), "{}: {error}", a.platform);
        }
    }
}

#[test]
fn device_entries_are_given_back() {
    let _alone = alone("device entries");
    let hub = hub();
    let Some(a) = owners().into_iter().next() else { return };
    let mut siblings: Vec<(ClassA, onebuf::ForeignContext)> = Vec::new();
    let refused = loop {
        assert!(siblings.len() < 100, "device entries have an end");
        let sibling = a.sibling();
        // SAFETY: class A holds a reference.
        match unsafe { hub.foreign_context(sibling.context.raw()) } {
            Ok(context) => siblings.push((sibling, context)),
            Err(error) => break (sibling, error),
        }
    };
    let (last, error) = refused;
    let Error::Busy { what } = &error else { panic!("{error}") };
    assert!(what.contains("context"), "{what}");
    let mem = last.words(&[3; N]);
    let before = last.reference_counts(&[&mem], &[]);
    assert!(matches!(wrap(&hub, &mem).build(), Err(Error::Busy { .. })));
    assert_restored(&before, || last.reference_counts(&[&mem], &[]), "no device entry");
    siblings.pop();
    assert_same(&wrapped(&hub, &mem).to_vec().unwrap(), &[3; N], "a device entry again");
    assert_restored(
        &before,
        || last.reference_counts(&[&mem], &[]),
        "the device entry was given back",
    );
}

/// The hub keeps the default queue of a device; one in a foreign context would keep that context alive.
#[test]
fn a_default_queue_does_not_keep_its_owners_context() {
    let _alone = alone("default queues");
    for a in owners() {
        let (hub, mem) = (hub(), a.words(&[3; N]));
        let before = a.reference_counts(&[&mem], &[]);
        let device = context(&hub, &a).device();
        let (queue, again) = (device.default_queue().unwrap(), device.default_queue().unwrap());
        assert_eq!(queue.raw(), again.raw(), "{}", a.platform);
        let (side, buffer) = (Side::open(&device).unwrap(), wrapped(&hub, &mem));
        let step = Step::nth(1);
        let arguments = args![&buffer, 0u32, N as u32, step.mul, step.add];
        side.kernel().launch([N], arguments).unwrap();
        let mut model = vec![3; N];
        step_model(&mut model, step);
        assert_same(&buffer.to_vec().unwrap(), &model, &a.platform);
        drop((queue, again, side, buffer, device));
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
    }
}

#[test]
fn given_up_memory_is_the_callers() {
    let _alone = alone("memory of ours given up");
    for a in owners() {
        let hub = hub();
        let device = context(&hub, &a).device();
        let side = Side::open(&device).unwrap();
        let buffer = hub.buffer::<u32>(N).shared_with([&device]).memory_kind(MemoryKind::Device);
        let buffer = buffer.build().unwrap();
        let mut model = random_words(5, N);
        buffer.write(&model).unwrap();
        side.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        let raw = buffer.into_cl_mem(&device).unwrap();
        // SAFETY: one reference, which the caller owns now.
        let mem = unsafe { Own::new(ClMem(raw)) };
        drop((side, device, hub));
        a.step(&a.queue, &mem, N, Step::nth(2), &[]);
        step_model(&mut model, Step::nth(2));
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
        assert_eq!(a.reference_counts(&[&mem], &[]).buffers, [1], "{}", a.platform);
    }
}

#[test]
fn a_second_wrap_for_more_devices_is_told_what_to_do() {
    let _alone = alone("a second wrap for more");
    let hub = hub();
    for a in owners() {
        let mem = a.words(&[4; N]);
        let before = a.reference_counts(&[&mem], &[]);
        let (other, narrow) = (twin(&hub, &a), wrapped(&hub, &mem));
        let refused = wrap(&hub, &mem).shared_with([&other]).build();
        let Err(Error::Busy { what }) = refused else { panic!("{}: {refused:?}", a.platform) };
        assert!(what.contains(other.id()), "{what}");
        drop(narrow);
        let wide = wrap(&hub, &mem).shared_with([&other]).build().unwrap();
        // A wrap for fewer devices needs nothing new.
        assert_same(&wrapped(&hub, &mem).to_vec().unwrap(), &[4; N], &a.platform);
        drop(wide);
        assert_restored(&before, || a.reference_counts(&[&mem], &[]), &a.platform);
    }
}

#[test]
fn owners_who_write_what_is_newer_elsewhere_are_told() {
    let _alone = alone("newer elsewhere");
    for a in owners() {
        let hub = hub();
        let other = Side::open(&twin(&hub, &a)).unwrap();
        let mut model = random_words(6, N);
        let mem = a.words(&model);
        let staged = wrap(&hub, &mem).shared_with([&other.device]).route(RouteKind::Staged);
        let (buffer, owners) = (staged.build().unwrap(), queue(&hub, &a.queue));
        other.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        let refused = buffer.written_until(&owners.fence());
        assert!(matches!(refused, Err(Error::Busy { .. })), "{}: {refused:?}", a.platform);
        buffer.hand_to(&owners).unwrap();
        buffer.written_until(&owners.fence()).unwrap();
        assert_same(&a.read(&a.queue, &mem, N), &model, &a.platform);
    }
}

#[test]
fn fences_of_another_hub() {
    let _alone = alone("fences of another hub");
    for a in owners() {
        let (one, two) = (hub(), hub());
        let mut model = random_words(7, N);
        let mem = a.words(&model);
        let theirs = queue(&two, &a.queue);
        a.step(&a.queue, &mem, N, Step::nth(1), &[]);
        step_model(&mut model, Step::nth(1));
        let fence = theirs.fence();
        // The fence is waited for or refused, and never mistaken for one of this hub's.
        match wrap(&one, &mem).after(&fence).build() {
            Ok(buffer) => assert_same(&buffer.to_vec().unwrap(), &model, &a.platform),
            Err(error) => assert!(
                matches!(error, Error::ForeignContext { .. } | Error::InvalidArgument(_)),
                "{}: {error}",
                a.platform
            ),
        }
    }
}

#[test]
fn memory_of_our_own_context_comes_back_as_ours() {
    let _alone = alone("our own context");
    for a in owners() {
        let hub = hub();
        let side = Side::open(&twin(&hub, &a)).unwrap();
        let made = hub.buffer::<u32>(N).shared_with([&side.device]).memory_kind(MemoryKind::Device);
        let made = made.build().unwrap();
        let mut model = random_words(8, N);
        made.write(&model).unwrap();
        let raw = made.into_cl_mem(&side.device).unwrap();
        // SAFETY: one reference, which we own now.
        let mem = unsafe { Own::new(ClMem(raw)) };
        let buffer = wrapped(&hub, &mem);
        assert_eq!(hub.queue_for(&buffer).unwrap().device().id(), side.device.id());
        side.step(&buffer, Step::nth(1)).unwrap();
        step_model(&mut model, Step::nth(1));
        assert_same(&buffer.to_vec().unwrap(), &model, &a.platform);
        drop(buffer);
        side.queue.finish().unwrap();
        assert!(!hub.devices().iter().any(|device| device.id().contains('@')), "{}", a.platform);
    }
}
