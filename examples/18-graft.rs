//! 18. OpenCL kernels in a CUDA stream: one from source, and one from a library's `cl_program`.
//!
//! `cargo run -p onebuf-examples --example 18-graft`

use onebuf::{
    Access, Device, Error, Hub, Kernel, Program, Result, Signature, Source, args, prelude::*,
    topology::VerdictState,
};
use onebuf_conformance::{Step, class_a::ClassA, step_model};

const N: usize = 1 << 16;

/// Reverses each work-group's part of `x`, with local memory and a barrier.
const TEXT: &str = "kernel void turn(global uint *x, local uint *part) {
    size_t l = get_local_id(0), n = get_local_size(0), i = get_global_id(0);
    part[l] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    x[i] = part[n - 1 - l];
}";

fn main() -> Result<()> {
    let hub = onebuf::discover()?;
    let Some((cl, cuda)) = one_chip(&hub) else {
        println!("nothing to graft: no GPU that both OpenCL and CUDA see");
        return Ok(());
    };
    let verdict = hub.graft_verdict(&cl, &cuda);
    if verdict.state != VerdictState::Proven {
        println!(
            "grafting is not proven here ({}); it was requested, so it is tried anyway",
            verdict.why
        );
    }

    // The kernel is compiled by OpenCL and launched by CUDA, with the same signature and arguments.
    let turn = match cl.program(&Source::opencl_c(TEXT))?.graft(&cuda) {
        Ok(program) => turn(&program)?,
        Err(Error::Unsupported { what, needs }) => {
            println!("{what} needs {needs}: `turn` would run on {cl}");
            return Ok(());
        }
        Err(other) => return Err(other),
    };

    // A library's kernel: the program exists as a `cl_program` only, without source.
    let library = ClassA::of(&cl.info().platform).ok_or_else(|| Error::invalid("it is gone"))?;
    // SAFETY: the program belongs to the library and lives as long as the library.
    let step = step(&unsafe { hub.graft_foreign(library.program.raw(), &cuda) }?)?;

    // One queue and one buffer, both CUDA's: no sharing, no hand-over, no context switch.
    let (words, queue) = (hub.buffer::<u32>(N).shared_with([&cuda]).build()?, cuda.queue()?);
    let mut model: Vec<u32> = (0..N as u32).collect();
    words.write(&model)?;
    let by = Step::nth(5);
    let part = onebuf::Arg::local::<u32>(256);
    queue.launch(&turn, onebuf::Grid::from([N]).local([256]), args![&words, part])?;
    let args = args![&words, N as u32, by.mul, by.add];
    queue.launch(&step, [N], args)?;

    model.chunks_mut(256).for_each(<[u32]>::reverse);
    step_model(&mut model, by);
    assert_eq!(words.to_vec()?, model);
    println!("grafted: two kernels of {cl} ran in one stream of {cuda}, and are right");
    Ok(())
}

fn one_chip(hub: &Hub) -> Option<(Device, Device)> {
    let cuda = hub.select("cuda");
    let same = |cl: &Device, other: &Device| cl.info().physical.same_chip(&other.info().physical);
    let pair = |cl: Device| Some((cl.clone(), cuda.iter().find(|cuda| same(&cl, cuda))?.clone()));
    hub.select("opencl").into_iter().find_map(pair)
}

fn turn(program: &Program) -> Result<Kernel> {
    let fits = Signature::new().each::<u32>(Access::ReadWrite).each_local::<u32>();
    // SAFETY: work-item i touches x[i], and one element of its group's part for each item of the group.
    unsafe { program.kernel("turn", fits) }
}

fn step(program: &Program) -> Result<Kernel> {
    let takes = Signature::new().buffer::<u32>(Access::ReadWrite).value::<u32>();
    let fits = takes.value::<u32>().value::<u32>().require(|call| match call.value::<u32>(1) {
        Some(n) if n as usize <= call.len(0) => Ok(()),
        _ => Err("n is larger than the buffer".into()),
    });
    // SAFETY: the kernel touches the first n words, and `fits` checks that the buffer has n words.
    unsafe { program.kernel("a_step", fits) }
}
