//! Kernels compiled for another API, whose images describe their parameters.

use super::*;
use onebuf_hal::{
    Kernel,
    packing::{self, Hidden, Packing, Slot},
};

/// The packing of the stub's kernel that reports its arguments.
fn packing() -> Packing {
    Packing {
        name: "told".into(),
        slots: vec![Slot::Memory, Slot::Local(16), Slot::Local(64)],
        hidden: vec![Hidden::Offset(0), Hidden::Offset(1), Hidden::Offset(2), Hidden::Dims],
        group: Some([32, 2, 1]),
        takes_offsets: true,
        ..Packing::default()
    }
}

fn kernel(rig: &Rig, packing: Packing, parameters: usize) -> Result<Arc<dyn Kernel>> {
    let image = packing::write(&[packing]) + "told";
    let program = rig.device.build(&Source::default().with_binary(image.into_bytes()))?;
    program.kernel("told", parameters)
}

fn launch(rig: &Rig, kernel: &dyn Kernel, grid: &Grid, local: [usize; 2]) -> Result<[u32; 7]> {
    let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, 28)?);
    let [a, b] = local.map(Arg::Local);
    let args = [Arg::Memory(&*memory, Access::ReadWrite, usize::MAX), a, b];
    // SAFETY: seven words.
    unsafe { queue.launch(kernel, grid, &args, &[], false) }?;
    Ok(words(&get(&*queue, &*memory, 0, 28)).try_into().unwrap())
}

fn plane(offset: [usize; 3]) -> Grid {
    Grid { dims: 2, global: [64, 4, 1], local: None, offset }
}

#[test]
fn local_memory_comes_by_offsets_and_launches_tell_of_themselves() {
    each(|rig| {
        let told = kernel(rig, packing(), 3).unwrap();
        let seen = launch(rig, &*told, &plane([7, 9, 0]), [100, 20]).unwrap();
        assert_eq!(seen, [0, 128, 7, 9, 0, 2, 160], "the second part is aligned to 64 bytes");
        let seen = launch(rig, &*told, &plane([0; 3]), [64, 64]).unwrap();
        assert_eq!(seen, [0, 64, 0, 0, 0, 2, 128]);
    });
}

/// SPIR-V's packing: each local argument has the size of the launch's memory, which is that of the largest argument; no
/// offsets are passed.
#[test]
fn local_memory_may_be_each_arguments_own() {
    each(|rig| {
        let apart = Packing { locals_apart: true, ..packing() };
        let told = kernel(rig, apart.clone(), 3).unwrap();
        let seen = launch(rig, &*told, &plane([7, 9, 0]), [100, 20]).unwrap();
        assert_eq!(seen, [0, 0, 7, 9, 0, 2, 112]);
        let has = rig.device.info().caps.local_memory_bytes as usize;
        let refused = launch(rig, &*told, &plane([0; 3]), [has, 16]).unwrap_err().to_string();
        assert!(refused.contains("for each of 2 local arguments"), "{refused}");
        let three = kernel(rig, Packing { three_dims: true, ..apart }, 3).unwrap();
        let refused = launch(rig, &*three, &plane([0; 3]), [4, 4]).unwrap_err().to_string();
        assert!(refused.ends_with("[n, 1, 1]"), "{refused}");
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    each(|rig| {
        let says = |result: Result<[u32; 7]>, text: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let told = kernel(rig, packing(), 3).unwrap();
        let far = plane([i32::MAX as usize - 63, 0, 0]);
        says(launch(rig, &*told, &far, [4, 4]), "2^31");
        let other = Grid { local: Some([64, 1, 1]), ..plane([0; 3]) };
        says(launch(rig, &*told, &other, [4, 4]), "groups of");
        let fixed = kernel(rig, Packing { takes_offsets: false, ..packing() }, 3).unwrap();
        says(launch(rig, &*fixed, &plane([1, 0, 0]), [4, 4]), "an API with offsets");
        assert!(launch(rig, &*fixed, &plane([0; 3]), [4, 4]).is_ok());
        let (queue, memory) = (rig.queue(), rig.memory(MemoryKind::Device, 28).unwrap());
        let memory = Arg::Memory(&*memory, Access::ReadWrite, usize::MAX);
        let wrong = [memory, Arg::Bytes(&[0; 8]), Arg::Local(4)];
        // SAFETY: refused.
        let refused = unsafe { queue.launch(&*told, &plane([0; 3]), &wrong, &[], false) };
        assert!(refused.unwrap_err().to_string().contains("parameter 1 of kernel `told`"));
    });
}

#[test]
fn a_packing_must_speak_of_its_kernel() {
    each(|rig| {
        let error = kernel(rig, packing(), 2).unwrap_err().to_string();
        assert!(error.contains("takes 3 arguments, 2 given"), "{error}");
        let other = Packing { name: "tell".into(), ..packing() };
        let error = kernel(rig, other, 3).unwrap_err().to_string();
        assert!(error.contains("no kernel `told`"), "{error}");
        let short = Packing { hidden: vec![Hidden::Dims], ..packing() };
        if rig.flavor == Flavor::Cuda {
            // Only CUDA's driver reports the parameters' sizes.
            let error = kernel(rig, short, 3).unwrap_err().to_string();
            assert!(error.contains("its packing describes"), "{error}");
        }
    });
}
