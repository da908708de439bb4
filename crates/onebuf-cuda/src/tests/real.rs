//! Tests on real devices; skipped with the reason where there is no GPU.

use super::*;

const CUDA_TEXT: &str = "extern \"C\" __global__ void add(unsigned *p, unsigned by) {
    p[blockIdx.x * blockDim.x + threadIdx.x] += by;
}";

/// The same kernel in PTX, for machines without a compiler.
const PTX_TEXT: &str = ".version 6.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 by) {
    .reg .u32 %r<6>;
    .reg .u64 %a<4>;
    ld.param.u64 %a1, [p];
    ld.param.u32 %r1, [by];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    cvta.to.global.u64 %a1, %a1;
    mul.wide.u32 %a2, %r2, 4;
    add.u64 %a1, %a1, %a2;
    ld.global.u32 %r5, [%a1];
    add.u32 %r5, %r5, %r1;
    st.global.u32 [%a1], %r5;
    ret;
}
";

fn real(flavor: Flavor) -> Option<(Arc<Probe>, Arc<Device>)> {
    let probe = Probe::new();
    match discover(flavor, Libraries::default(), Some(probe.clone()), &mut || Domain(1), &|_| None)
    {
        Ok(mut found) => Some((probe, found.devices.swap_remove(0))),
        Err(missing) => {
            let (strict, file) =
                (std::env::var("ONEBUF_STRICT"), flavor.pick(["/dev/nvidiactl", "/dev/kfd"]));
            let strict = strict.is_ok_and(|level| !["", "0"].contains(&&*level));
            assert!(
                !strict || !std::path::Path::new(file).exists(),
                "{missing}, although there is {file}, and ONEBUF_STRICT is set"
            );
            println!("skip: {missing}");
            assert_eq!(missing.api, flavor.api());
            assert!(missing.loaded == missing.code.is_some() || !missing.reason.is_empty());
            None
        }
    }
}

fn works(flavor: Flavor, sources: &[Source]) {
    let _alone = alone();
    let Some((probe, device)) = real(flavor) else { return };
    println!("{:#?}", device.info());
    let queue = device.queue(QueueSpec::default().profiled()).unwrap();
    let registered = device.import(&Export::Host(pages(1 << 20)), Access::ReadWrite).unwrap();
    let [plain, pinned] = [MemoryKind::Device, MemoryKind::MappedDevice].map(|memory_kind| {
        device.allocate(&spec(memory_kind, 1 << 20), Some(&numbers(1 << 20))).unwrap()
    });
    put(&*queue, &*registered, 0, &numbers(1 << 20));
    for source in sources {
        let kernel = match device.build(source) {
            Ok(program) => program.kernel("add", 2).unwrap(),
            Err(Error::Unavailable { what, reason, .. }) => {
                println!("skip: {source:?}: {what}: {reason}");
                continue;
            }
            Err(why) => panic!("{source:?}: {why}"),
        };
        for memory in [&plain, &pinned, &registered] {
            let before = words(&get(&*queue, &**memory, 0, 1 << 20));
            let args =
                [Arg::Memory(&**memory, Access::ReadWrite, 1 << 20), Arg::Bytes(&[3, 0, 0, 0])];
            // SAFETY: a quarter as many words as bytes.
            let event = unsafe { queue.launch(&*kernel, &line(1 << 18), &args, &[], true) };
            let event = event.unwrap().unwrap();
            event.wait(SECONDS).unwrap();
            println!("{:?}: {:?}", memory.memory_kind(), event.profile().unwrap().run());
            let after = words(&get(&*queue, &**memory, 0, 1 << 20));
            assert!(before.iter().zip(&after).all(|(a, b)| a.wrapping_add(3) == *b));
        }
    }
    for len in [1, 2, 3, 4, 8, 12] {
        let (pattern, bytes) = (numbers(len), (1 << 18) / len * len);
        queue.fill(&*plain, 0, bytes, &pattern).unwrap();
        assert_eq!(get(&*queue, &*plain, 0, bytes), pattern.repeat(bytes / len));
    }
    queue.copy(&*plain, 0, &*pinned, 4096, 8192).unwrap();
    assert_eq!(get(&*queue, &*pinned, 4096, 8192), get(&*queue, &*plain, 0, 8192));
    drop((plain, pinned, registered, queue, device));
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}

#[test]
fn on_an_nvidia_gpu() {
    works(Flavor::Cuda, &[written(PTX, PTX_TEXT), written(CUDA_C, CUDA_TEXT)]);
}

#[test]
fn on_an_amd_gpu() {
    works(Flavor::Hip, &[written(HIP_C, CUDA_TEXT)]);
}
