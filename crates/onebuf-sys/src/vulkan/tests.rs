//! Tests of the loader, and of injected failures.

use super::*;

#[test]
fn a_library_that_is_not_vulkan_is_named() {
    let missing = Vulkan::load(Some("libc.so.6"), None).unwrap_err();
    assert!(missing.loaded, "{missing}");
    assert!(missing.reason.contains("lacks vkGetInstanceProcAddr"), "{missing}");
}

#[test]
fn a_dead_path_says_what_was_tried() {
    let missing = Vulkan::load(Some("/nowhere/libvulkan.so"), None).unwrap_err();
    assert_eq!((missing.api, missing.loaded), ("vulkan", false));
    assert_eq!(missing.tried, ["/nowhere/libvulkan.so"]);
    assert!(missing.hint.contains("libvulkan1"), "{missing}");
}

#[test]
fn a_chosen_call_fails_and_nothing_is_left() {
    let probe = Probe::new();
    let vulkan = match Vulkan::load(Some("libvulkan.so.1"), Some(probe.clone())) {
        Ok(vulkan) => vulkan,
        Err(missing) => return println!("skip: {missing}"),
    };
    assert!(vulkan.library().is_some(), "{vulkan:?}");
    assert!(vulkan.version().unwrap() >= vk::API_VERSION_1_0);
    let info = vk::InstanceCreateInfo::default();
    probe.fail_nth(1, vk::Result::ERROR_INCOMPATIBLE_DRIVER.as_raw());
    // SAFETY: a default description is complete.
    let refused = unsafe { vulkan.create_instance(&info) }.unwrap_err();
    assert_eq!(refused.status, vk::Result::ERROR_INCOMPATIBLE_DRIVER);
    assert_eq!(probe.failed(), Some("vkCreateInstance"));
    assert!(refused.to_string().contains("vkCreateInstance"), "{refused}");
    // SAFETY: as above; destroyed once, and not used after that.
    unsafe {
        let instance = vulkan.create_instance(&info).unwrap();
        assert_eq!(probe.live().get("instance"), Some(&1));
        instance.destroy();
    }
    assert!(probe.live().is_empty(), "{:?}", probe.live());
}
