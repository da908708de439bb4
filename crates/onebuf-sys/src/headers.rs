//! Parsers for the installed headers of OpenCL, HIP, HSA, EGL and OpenGL. Tests compare all numbers and prototypes with
//! them.

use std::collections::HashMap;
use std::fs;

const FOLDER: &str = "/usr/include/CL";

/// The text of the headers without comments; empty, after a printed skip, if they are not installed.
pub fn text() -> String {
    // cl_platform.h is left out: its negative numbers are limits of C types.
    let names = ["cl.h", "cl_ext.h", "cl_gl.h", "cl_egl.h", "cl_d3d10.h", "cl_d3d11.h"];
    let more = ["cl_dx9_media_sharing.h", "cl_va_api_media_sharing_intel.h"];
    let read = |name| fs::read_to_string(format!("{FOLDER}/{name}")).ok();
    let text: String = names.into_iter().chain(more).filter_map(read).collect();
    if text.is_empty() {
        println!("skip: no OpenCL headers in {FOLDER}");
    }
    without_comments(&text)
}

fn without_comments(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((code, comment)) = rest.split_once("/*") {
        out.push_str(code);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    out + rest
}

/// Every `#define NAME number`.
pub fn defines() -> Vec<(String, i64)> {
    defines_in(&text())
}

/// Every `#define NAME number` of a text.
pub fn defines_in(text: &str) -> Vec<(String, i64)> {
    text.lines().filter_map(define).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn define(line: &str) -> Option<(&str, i64)> {
    let (name, value) = line.strip_prefix("#define ")?.trim().split_once(char::is_whitespace)?;
    let value = value.split("//").next()?.trim().trim_start_matches('(').trim_end_matches(')');
    match value.split_once("<<") {
        Some((one, shift)) => Some((name, number(one)? << number(shift)?)),
        None => Some((name, number(value)?)),
    }
}

fn number(text: &str) -> Option<i64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The size in bytes of each argument of each declared function, by the function's name.
pub fn prototypes() -> HashMap<String, Vec<usize>> {
    let text = text();
    let sizes = typedefs(&text);
    let mut all = HashMap::new();
    for declaration in text.split("extern ").skip(1) {
        let Some((head, rest)) = declaration.split_once('(') else { continue };
        let name = head.split_whitespace().last().unwrap_or_default().to_owned();
        all.insert(name, arguments(rest).iter().map(|arg| size_of_argument(arg, &sizes)).collect());
    }
    all
}

/// Splits at the commas outside inner parentheses, up to the closing one.
fn arguments(text: &str) -> Vec<String> {
    let mut depth = 0;
    let mut all = vec![String::new()];
    for c in text.chars() {
        match c {
            ')' if depth == 0 => break,
            ',' if depth == 0 => {
                all.push(String::new());
                continue;
            }
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        all.last_mut().unwrap().push(c);
    }
    all
}

fn typedefs(text: &str) -> HashMap<String, usize> {
    let basic = [("cl_int", 4), ("cl_uint", 4), ("cl_ulong", 8), ("size_t", size_of::<usize>())];
    let mut sizes = HashMap::from(basic.map(|(name, size)| (name.to_owned(), size)));
    sizes.insert("intptr_t".into(), size_of::<isize>());
    // OpenGL's unsigned int, by its name in OpenCL.
    sizes.insert("cl_GLuint".into(), 4);
    for line in text.lines().filter_map(|line| line.strip_prefix("typedef ")) {
        let Some((of, name)) = line.trim_end().trim_end_matches(';').rsplit_once(' ') else {
            continue;
        };
        let pointer = of.trim().ends_with('*').then_some(size_of::<usize>());
        if let Some(size) = pointer.or_else(|| sizes.get(of.trim()).copied()) {
            sizes.insert(name.to_owned(), size);
        }
    }
    sizes
}

/// Returns the size of an argument; 0 for a type that these tests do not need.
fn size_of_argument(argument: &str, sizes: &HashMap<String, usize>) -> usize {
    if argument.contains(['*', '[']) {
        return size_of::<usize>();
    }
    argument.split_whitespace().find_map(|word| sizes.get(word).copied()).unwrap_or(0)
}

/// The argument sizes of the functions in HIP's headers, which return a status or a string.
pub fn hip_prototypes(text: &str) -> HashMap<String, Vec<usize>> {
    let text = without_line_comments(&without_comments(text));
    let mut all = HashMap::new();
    for returns in ["hipError_t hip", "hiprtcResult hiprtc", "const char* hip"] {
        let prefix = returns.split_whitespace().last().unwrap_or_default();
        for declaration in text.split(returns).skip(1) {
            let Some((name, rest)) = declaration.split_once('(') else { continue };
            let sizes = arguments(rest).iter().map(|arg| size_in_hip(arg)).collect();
            // Names are repeated with C++ default arguments; the first declaration is C's.
            all.entry(format!("{prefix}{}", name.trim())).or_insert(sizes);
        }
    }
    all
}

/// Returns the argument sizes of one function in the headers of a math library; `None` if they do not declare it.
pub fn prototype(text: &str, name: &str) -> Option<Vec<usize>> {
    let declares = |rest: &&str| rest.trim_start().starts_with('(');
    let before = |at: usize| text[..at].chars().next_back();
    let ends_word = |at: usize| before(at).is_some_and(|c| !c.is_alphanumeric() && c != '_');
    let found = text.match_indices(name).filter(|(at, _)| ends_word(*at));
    let mut rests = found.map(|(at, _)| &text[at + name.len()..]).filter(declares);
    let (_, rest) = rests.next()?.split_once('(')?;
    let arguments = arguments(rest);
    let given = arguments.iter().filter(|arg| !["", "void"].contains(&arg.trim()));
    Some(given.map(|arg| size_in_library(arg)).collect())
}

/// Returns the text of headers without comments and preprocessor lines.
pub fn plain(text: &str) -> String {
    let text = without_line_comments(&without_comments(text));
    text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Returns the size of an argument: handles are pointers, any other type is a number of four bytes.
fn size_in_library(argument: &str) -> usize {
    let handles = ["cublasHandle_t", "cusolverDnHandle_t", "cudaStream_t", "hipStream_t"];
    let more =
        ["rocblas_handle", "rocfft_plan", "rocfft_execution_info", "rocfft_plan_description"];
    let is_word = |word: &str| argument.split_whitespace().any(|own| own == word);
    let wide = handles.into_iter().chain(more).any(is_word);
    if wide || argument.contains(['*', '[']) || is_word("size_t") { 8 } else { 4 }
}

fn without_line_comments(text: &str) -> String {
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    text.lines().map(code).collect::<Vec<_>>().join("\n")
}

/// Returns the size of an argument: handles are pointers, any other type is a number of four bytes.
fn size_in_hip(argument: &str) -> usize {
    let words: Vec<_> = argument.split_whitespace().collect();
    let has = |word| words.contains(&word);
    let handles = [
        "hipStream_t",
        "hipEvent_t",
        "hipModule_t",
        "hipFunction_t",
        "hipExternalMemory_t",
        "hipGraphicsResource_t",
        "hipMemGenericAllocationHandle_t",
        "hipHostFn_t",
        "hiprtcProgram",
    ];
    match () {
        () if argument.contains(['*', '[']) || has("size_t") || has("hipDeviceptr_t") => 8,
        () if handles.into_iter().any(has) || has("long") => 8,
        () if has("hipIpcMemHandle_t") => 64,
        () if has("char") => 1,
        () if has("short") => 2,
        () => 4,
    }
}

/// Returns the enumerators of `typedef enum … name`, with their values as C counts them.
pub fn enumerators(text: &str, name: &str) -> HashMap<String, i64> {
    let text = without_line_comments(&without_comments(text));
    let body = text.split(&format!("}} {name};")).next().unwrap_or_default();
    let body = body.rsplit("typedef enum").next().unwrap_or_default();
    let body = body.split_once('{').map_or("", |(_, body)| body);
    let (mut all, mut next) = (HashMap::new(), 0);
    for item in body.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (name, value) = item.split_once('=').map_or((item, None), |(n, v)| (n, Some(v.trim())));
        next = value.map_or(next, |v| number(v).unwrap_or_else(|| all[v]));
        all.insert(name.trim().to_owned(), next);
        next += 1;
    }
    all
}

/// The size in bytes of each argument of each of ROCr's functions that return a status.
pub fn hsa_prototypes(text: &str) -> HashMap<String, Vec<usize>> {
    let text = without_line_comments(&without_comments(text));
    let mut all = HashMap::new();
    for declaration in text.split("hsa_status_t").skip(1) {
        let Some((head, rest)) = declaration.split_once('(') else { continue };
        let name = head.trim().trim_start_matches("HSA_API").trim();
        let some = |argument: &String| !["", "void"].contains(&argument.trim());
        all.insert(
            name.to_owned(),
            arguments(rest).iter().filter(|a| some(a)).map(|a| size_in_hsa(a)).collect(),
        );
    }
    all
}

/// Returns the size of an argument: handles are structures of one word, any other type is a number of four bytes, or an
/// `enum`.
fn size_in_hsa(declared: &str) -> usize {
    let words: Vec<_> = declared.split_whitespace().collect();
    let wide = ["size_t", "uint64_t", "hsa_agent_t"];
    match () {
        () if declared.contains(['*', '[']) || wide.into_iter().any(|w| words.contains(&w)) => 8,
        () if words.contains(&"bool") => 1,
        () => 4,
    }
}

/// Returns the fields of ROCr's `typedef struct … name`, and their offsets: each at a multiple of its size.
pub fn offsets(text: &str, name: &str) -> Vec<(String, usize)> {
    let text = without_line_comments(&without_comments(text));
    let body = text.split(&format!("}} {name};")).next().unwrap_or_default();
    let body = body.rsplit_once("typedef struct").map_or("", |(_, body)| body);
    let body = body.split_once('{').map_or("", |(_, body)| body);
    let mut next = 0usize;
    let fields = body.split(';').map(str::trim).filter(|field| !field.is_empty());
    let place = |field: &str| {
        let size = size_in_hsa(field);
        let at = next.next_multiple_of(size);
        next = at + size;
        (field.rsplit([' ', '*']).next().unwrap_or_default().to_owned(), at)
    };
    fields.map(place).collect()
}

/// The size in bytes of each argument of each function of EGL and OpenGL.
pub fn khronos_prototypes(text: &str) -> HashMap<String, Vec<usize>> {
    let mut all = HashMap::new();
    for declaration in without_comments(text).split("APIENTRY ").skip(1) {
        let Some((name, rest)) = declaration.split_once('(') else { continue };
        let some = |argument: &String| !["", "void"].contains(&argument.trim());
        let sizes =
            arguments(rest).iter().filter(|a| some(a)).map(|a| size_in_khronos(a)).collect();
        all.insert(name.trim().to_owned(), sizes);
    }
    all
}

/// Returns the size of an argument: handles are pointers, any other type is a number of four bytes.
fn size_in_khronos(argument: &str) -> usize {
    let wide = ["GLuint64", "GLint64", "EGLTime"];
    let words = ["GLsizeiptr", "GLintptr", "EGLAttrib"];
    let handles = ["GLsync", "EGLDisplay", "EGLContext", "EGLConfig", "EGLSurface", "EGLDeviceEXT"];
    let has = |names: &[&str]| argument.split_whitespace().any(|word| names.contains(&word));
    let is_pointer = argument.contains(['*', '[']) || has(&words) || has(&handles);
    if is_pointer {
        size_of::<usize>()
    } else if has(&wide) {
        8
    } else {
        4
    }
}
