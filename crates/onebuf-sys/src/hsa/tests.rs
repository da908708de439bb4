//! Compares the table with ROCr's headers and with the installed ROCr, without a GPU.

use std::mem::offset_of;

use super::*;
use crate::headers;

/// The sizes of a C function's arguments.
trait Arguments {
    const SIZES: &'static [usize];
}

macro_rules! arguments {
    ($($($ty:ident)*;)*) => {$(
        impl<$($ty),*> Arguments for unsafe extern "C" fn($($ty),*) -> i32 {
            const SIZES: &'static [usize] = &[$(size_of::<$ty>()),*];
        }
    )*};
}

arguments! { ; A; A B C D; A B C D E; }

const SIZES: &[(&str, &[usize])] = &[
    ("hsa_init", Init::SIZES),
    ("hsa_shut_down", Init::SIZES),
    ("hsa_amd_pointer_info", Info::SIZES),
    (EXPORT, Export::SIZES),
    (CLOSE, Close::SIZES),
];

/// Returns ROCr's headers if they are installed. `ONEBUF_HSA_INCLUDE` names another folder.
fn header() -> Option<String> {
    let folder = std::env::var("ONEBUF_HSA_INCLUDE").unwrap_or("/usr/include/hsa".into());
    let read = |name| std::fs::read_to_string(format!("{folder}/{name}"));
    match read("hsa.h").and_then(|a| Ok(a + &read("hsa_ext_amd.h")?)) {
        Ok(text) => Some(text),
        Err(why) => {
            println!("skip: no HSA headers in {folder}: {why}");
            None
        }
    }
}

#[test]
fn every_argument_has_the_size_that_the_headers_say() {
    let Some(text) = header() else { return };
    let prototypes = headers::hsa_prototypes(&text);
    for (name, sizes) in SIZES {
        match prototypes.get(*name) {
            Some(said) => assert_eq!(said, sizes, "{name}"),
            None if [EXPORT, CLOSE].contains(name) => {
                println!("skip: {name}: these headers are older than ROCm 5.6");
            }
            None => panic!("{name} is not in the headers"),
        }
    }
}

#[test]
fn a_pointers_description_lies_as_in_the_headers() {
    let Some(text) = header() else { return };
    let ours = [
        ("size", offset_of!(PointerInfo, size)),
        ("type", offset_of!(PointerInfo, kind)),
        ("agentBaseAddress", offset_of!(PointerInfo, agent_base)),
        ("hostBaseAddress", offset_of!(PointerInfo, host_base)),
        ("sizeInBytes", offset_of!(PointerInfo, bytes)),
        ("userData", offset_of!(PointerInfo, user_data)),
        ("agentOwner", offset_of!(PointerInfo, owner)),
        ("global_flags", offset_of!(PointerInfo, global_flags)),
        ("registered", offset_of!(PointerInfo, registered)),
    ];
    let theirs = headers::offsets(&text, "hsa_amd_pointer_info_t");
    assert!(theirs.len() >= 8, "{theirs:?}");
    for ((name, at), ours) in theirs.iter().zip(ours) {
        assert_eq!((name.as_str(), *at), ours);
    }
    assert_eq!(size_of::<PointerInfo>(), 56, "the flag lies in what was padding");
    assert_eq!(PointerInfo::default().size, 56);
}

#[test]
fn numbers_are_those_of_the_headers() {
    let Some(text) = header() else { return };
    let types = headers::enumerators(&text, "hsa_amd_pointer_type_t");
    let is = |name: &str, PointerType(ours)| {
        assert_eq!(types[&format!("HSA_EXT_POINTER_TYPE_{name}")], i64::from(ours), "{name}");
    };
    is("UNKNOWN", PointerType::UNKNOWN);
    is("HSA", PointerType::HSA);
    is("LOCKED", PointerType::LOCKED);
    is("GRAPHICS", PointerType::GRAPHICS);
    is("IPC", PointerType::IPC);
    let statuses = headers::enumerators(&text, "hsa_status_t");
    let named: Vec<_> =
        (0..0x1100).filter_map(|code| Some((code, HsaStatus(code).name()?))).collect();
    assert_eq!(named.len(), 8);
    for (code, name) in named {
        assert_eq!(statuses[name], i64::from(code), "{name}");
    }
}

#[test]
fn statuses_display() {
    let said = |status| HsaRefused { call: "hsa_init", status }.to_string();
    assert_eq!(
        said(HsaStatus::ERROR_OUT_OF_RESOURCES),
        "hsa_init: HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008)"
    );
    assert_eq!(said(HsaStatus(0x2c)), "hsa_init: status 0x2c");
    assert_eq!(said(HsaStatus::NOT_LOADED), "hsa_init: call not exported by the library");
}

#[test]
fn a_missing_library_is_a_value() {
    let missing = Hsa::load(Some("/nonexistent.so"), None).unwrap_err();
    assert_eq!((missing.api, missing.loaded), ("hsa", false));
    assert!(missing.hint.contains("it comes with ROCm"), "{missing}");
    let missing = Hsa::load(Some("none"), None).unwrap_err();
    assert!(missing.tried.is_empty() && missing.reason.contains("switched off"), "{missing}");
}

#[test]
fn a_library_that_is_another_says_what_it_lacks() {
    let missing = Hsa::load(Some("libc.so.6"), None).unwrap_err();
    assert!(missing.loaded);
    assert_eq!(
        missing.reason, "libc.so.6 lacks hsa_init, hsa_shut_down, hsa_amd_pointer_info",
        "optional symbols are not demanded"
    );
}

#[test]
fn the_installed_rocr_answers() {
    let probe = Probe::new();
    let hsa = match Hsa::load(None, Some(probe.clone())) {
        Ok(hsa) => hsa,
        Err(missing) => return println!("skip: {missing}"),
    };
    let place = 0u8;
    let ask = || {
        // SAFETY: any non-null pointer may be queried, whether or not the runtime is initialised.
        unsafe { hsa.pointer_info((&raw const place).cast()) }
    };
    // If there is a GPU, HIP in another test may have initialised ROCr already.
    match ask() {
        Ok(info) => assert_eq!(info.kind, PointerType::UNKNOWN),
        Err(before) => assert_eq!(before.status, HsaStatus::ERROR_NOT_INITIALIZED, "{before}"),
    }
    // SAFETY: may be called at any time.
    match unsafe { hsa.init() } {
        Ok(()) => {
            assert_eq!(ask().unwrap().kind, PointerType::UNKNOWN);
            // SAFETY: balances the `init` above.
            unsafe { hsa.shut_down() }.unwrap();
        }
        Err(refused) => {
            assert_eq!(refused.call, "hsa_init");
            println!("skip: no AMD GPU: {refused}");
            assert_eq!(ask().unwrap_err().status, HsaStatus::ERROR_NOT_INITIALIZED);
        }
    }
    assert!(probe.live().is_empty(), "{:?}", probe.live());
    if !hsa.has_dmabuf() {
        // SAFETY: the function is missing, so it is not called.
        let refused = unsafe { hsa.export_dmabuf(std::ptr::null(), 4096) }.unwrap_err();
        assert_eq!(refused.status, HsaStatus::NOT_LOADED);
    }
}

#[test]
fn the_chosen_call_is_not_made() {
    let probe = Probe::new();
    let hsa = match Hsa::load(None, Some(probe.clone())) {
        Ok(hsa) => hsa,
        Err(missing) => return println!("skip: {missing}"),
    };
    probe.fail_nth(1, 0x1008);
    // SAFETY: not called.
    let refused = unsafe { hsa.init() }.unwrap_err();
    assert_eq!((refused.status, probe.failed()), (HsaStatus(0x1008), Some("hsa_init")));
    assert!(probe.live().is_empty());
}
