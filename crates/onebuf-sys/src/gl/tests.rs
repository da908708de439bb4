//! Compares the table with Khronos' headers and with the installed EGL.

use super::*;
use crate::headers;

/// Returns the headers' text if they are installed. `ONEBUF_GL_INCLUDE` names another folder.
fn header() -> Option<String> {
    let folder = std::env::var("ONEBUF_GL_INCLUDE").unwrap_or("/usr/include".into());
    let names = ["EGL/egl.h", "EGL/eglext.h", "GL/glcorearb.h", "GL/glext.h"];
    let read = |name| std::fs::read_to_string(format!("{folder}/{name}"));
    let texts: Result<Vec<_>, _> = names.into_iter().map(read).collect();
    match texts {
        Ok(texts) => Some(texts.concat()),
        Err(why) => {
            println!("skip: no EGL and OpenGL headers in {folder}: {why}");
            None
        }
    }
}

#[test]
fn every_argument_has_the_size_that_the_headers_say() {
    let Some(text) = header() else { return };
    let prototypes = headers::khronos_prototypes(&text);
    assert!(prototypes.len() > 1000, "{}", prototypes.len());
    for (name, sizes) in Gl::SIZES {
        let said = prototypes.get(*name).unwrap_or_else(|| panic!("{name} is not in the headers"));
        assert_eq!(said, sizes, "{name}");
    }
}

#[test]
fn numbers_are_those_of_the_headers() {
    let Some(text) = header() else { return };
    let defines = headers::defines_in(&text);
    for (name, value) in consts::NAMES.iter().chain(GlStatus::NAMES) {
        let said = defines.iter().find(|(header, _)| header == name);
        assert_eq!(said.map(|(_, value)| *value), Some(*value), "{name}");
    }
}

#[test]
fn statuses_display() {
    let said = |status| GlRefused { call: "glFlush", status }.to_string();
    assert_eq!(said(GlStatus::OUT_OF_MEMORY), "glFlush: GL_OUT_OF_MEMORY (0x0505)");
    assert_eq!(said(GlStatus(0x1234)), "glFlush: status 0x1234");
    assert_eq!(said(GlStatus::NOT_LOADED), "glFlush: call not offered by the library");
    assert!(GlStatus::CONTEXT_LOST.is_fatal() && !GlStatus::OUT_OF_MEMORY.is_fatal());
}

#[test]
fn a_missing_library_is_a_value() {
    let missing = Gl::load(Some("/nonexistent.so"), None).unwrap_err();
    assert_eq!((missing.api, missing.loaded), ("gl", false));
    assert!(missing.hint.contains("libegl1"), "{missing}");
    let missing = Gl::load(Some("none"), None).unwrap_err();
    assert!(missing.tried.is_empty() && missing.reason.contains("switched off"), "{missing}");
    let missing = Gl::load(Some("libc.so.6"), None).unwrap_err();
    assert!(missing.loaded && missing.reason.contains("lacks eglGetProcAddress"), "{missing}");
}

#[test]
fn what_is_installed_answers() {
    let probe = Probe::new();
    let gl = match Gl::load(None, Some(probe.clone())) {
        Ok(gl) => gl,
        Err(missing) => return println!("skip: {missing}"),
    };
    assert!(gl.library().is_some_and(|path| path.to_str().is_some_and(|p| p.contains("EGL"))));
    // SAFETY: without a display the call returns the library's own extensions.
    let extensions = unsafe { gl.egl_text(EglDisplay::NULL, consts::EGL_EXTENSIONS) };
    assert!(extensions.contains("EGL_"), "{extensions}");
    // SAFETY: a null display is refused with an error.
    let refused = unsafe {
        let none = std::ptr::null_mut();
        gl.egl_make_current(EglDisplay::NULL, none, none, EglContext::NULL)
    };
    assert_eq!(refused.unwrap_err().status, GlStatus::EGL_BAD_DISPLAY);
    probe.fail_nth(1, 0x3003);
    // SAFETY: it is not called.
    let refused = unsafe { gl.egl_bind_api(consts::EGL_OPENGL_API) }.unwrap_err();
    assert_eq!(refused, GlRefused { call: "eglBindAPI", status: GlStatus::EGL_BAD_ALLOC });
    assert!(probe.live().is_empty() && probe.calls() == 3, "{:?}", probe.trace());
}
