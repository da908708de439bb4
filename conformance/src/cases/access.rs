//! Buffers that kernels only read or only write, in every memory kind of each device.

use crate::{Trial, kernels};
use onebuf::{Access, Buffer, Device, Error, Kernel, MemoryKind, Program, Result, Signature, args};

const N: usize = 64;
const TEXT: &str = "
kernel void put(global uint *to) { to[get_global_id(0)] = 7; }
kernel void add(global const uint *from, global uint *to) {
    size_t i = get_global_id(0);
    to[i] = from[i] + 1;
}";

fn program(device: &Device) -> Program {
    let source = kernels(TEXT)
        .with_native("put", |args| {
            args.slice_mut::<u32>(0)?.fill(7);
            Ok(())
        })
        .with_native("add", |args| {
            let (from, to) = args.pair::<u32, u32>(0, 1)?;
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from + 1);
            Ok(())
        });
    device.program(&source).unwrap()
}

fn kernel(program: &Program, name: &str, accesses: &[Access]) -> Kernel {
    let signature = accesses.iter().fold(Signature::new(), |s, &access| s.buffer::<u32>(access));
    // SAFETY: work-item i touches element i, and every launch here has N items and N elements.
    unsafe { program.kernel(name, signature).unwrap() }
}

fn buffer(device: &Device, memory_kind: MemoryKind, access: Access) -> Result<Buffer<u32>> {
    let builder = device.hub().buffer::<u32>(N).shared_with([device]).allocate_on(device);
    builder.access(access).memory_kind(memory_kind).build()
}

pub fn kernels_get_the_access_that_they_declare(t: &Trial<'_>) {
    t.each_device(|side| {
        let (device, queue) = (&side.device, side.device.queue().unwrap());
        let program = program(device);
        let put = kernel(&program, "put", &[Access::Write]);
        let add = kernel(&program, "add", &[Access::Read, Access::Write]);
        for &memory_kind in &device.info().caps.memory_kinds {
            let what = format!("{device} {memory_kind}");
            let from = buffer(device, memory_kind, Access::Read).expect(&what);
            let to = buffer(device, memory_kind, Access::Write).expect(&what);
            // The declared access restricts kernels, not the host.
            from.write(&[4; N]).expect(&what);
            from.fill(5).expect(&what);
            queue.launch(&put, [N], args![to.write_on(&queue).unwrap()]).expect(&what);
            assert_eq!(to.to_vec().expect(&what), [7; N], "{what}");
            let views = args![from.read_on(&queue).unwrap(), to.write_on(&queue).unwrap()];
            queue.launch(&add, [N], views).expect(&what);
            assert_eq!(to.to_vec().expect(&what), [6; N], "{what}");
        }
    });
}

pub fn more_than_the_buffer_was_made_for_is_refused(t: &Trial<'_>) {
    t.each_device(|side| {
        let (device, queue) = (&side.device, side.device.queue().unwrap());
        let put = kernel(&program(device), "put", &[Access::Write]);
        for &memory_kind in &device.info().caps.memory_kinds {
            let read_only = buffer(device, memory_kind, Access::Read).unwrap();
            read_only.write(&[4; N]).unwrap();
            let refused = queue.launch(&put, [N], args![read_only.write_on(&queue).unwrap()]);
            let what = format!("{device} {memory_kind}: {refused:?}");
            let Err(Error::InvalidArgument(why)) = refused else { panic!("{what}") };
            assert!(why.contains("argument 0") && why.contains("made for read"), "{why}");
            assert_eq!(read_only.to_vec().unwrap(), [4; N], "{what}");
        }
    });
}
