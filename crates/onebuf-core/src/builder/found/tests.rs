//! Tests of `found.rs`.

use onebuf_hal::Error;

#[test]
fn helpers_are_told_what_was_asked_for() {
    let told = |builder: crate::HubBuilder| builder.backends.environment();
    assert!(told(crate::builder()).is_empty());
    let builder = crate::builder().without(["opencl"]).library("hip", "libx.so");
    let expected =
        [("ONEBUF_OPENCL_LIB", "none"), ("ONEBUF_HIP_LIB", "libx.so"), ("ONEBUF_MANAGED", "1")];
    let expected = expected.map(|(name, word)| (name, word.to_owned()));
    assert_eq!(told(builder.managed_memory(true)), expected);
    let only: Vec<_> = told(crate::builder().only(["cuda"]).library("nvrtc", "none"));
    let names: Vec<_> = only.iter().map(|(name, word)| (*name, word.as_str())).collect();
    assert_eq!(
        names,
        [
            ("ONEBUF_OPENCL_LIB", "none"),
            ("ONEBUF_NVRTC_LIB", "none"),
            ("ONEBUF_HIP_LIB", "none"),
            ("ONEBUF_VULKAN_LIB", "none"),
            ("ONEBUF_EGL_LIB", "none"),
        ]
    );
}

#[test]
fn what_was_added_by_hand_stays_unless_it_is_named() {
    let alone = || crate::builder().only(["host"]).verdicts(Default::default());
    let builder = || alone().fake(Default::default());
    let two = builder().fake(Default::default()).build().unwrap();
    let ids: Vec<_> = two.devices().iter().map(|device| device.id().to_owned()).collect();
    assert_eq!(ids, ["host", "fake:0", "fake:1"]);
    let off: Vec<_> = two.unavailable().iter().map(|one| one.api).collect();
    assert_eq!(off, ["opencl", "cuda", "hip", "vulkan", "gl"]);
    assert_eq!(builder().without(["fake"]).build().unwrap().devices().len(), 1);
}

#[test]
fn unknown_names_are_told() {
    let wrong = [
        crate::builder().only(["opencI"]),
        crate::builder().without(["fake"]),
        crate::builder().library("libcuda", "x.so"),
    ];
    for builder in wrong {
        let Err(Error::InvalidArgument(why)) = builder.build() else { panic!("built") };
        assert!(why.contains("this build knows"), "{why}");
    }
    // A hub needs a list of backends that includes the host.
    // SAFETY: an empty list has no contract to fulfil.
    let none = unsafe { crate::HubBuilder::new(Vec::new()) };
    assert!(matches!(none.build(), Err(Error::Unavailable { .. })));
}
