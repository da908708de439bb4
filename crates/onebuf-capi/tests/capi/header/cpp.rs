//! `include/onebuf_types.hpp`, the repetitive part of the C++ header: words, structures with their sizes, and a class for each
//! handle with those calls that only translate types. Generated from the declarations of the C header.

use super::{SECTIONS, differs, items, path};
use crate::declarations::{Comment, Declaration, Function};
use std::{collections::BTreeMap, fmt::Write, fs};

/// Names that do not follow from those in C.
const NAMES: &[(&str, &str)] = &[
    ("onebuf_vk_handles", "VulkanHandles"),
    ("onebuf_vk_buffer", "VulkanBuffer"),
    ("onebuf_gl", "Gl"),
    ("onebuf_vk", "Vulkan"),
    ("onebuf_lu", "Lu"),
    ("onebuf_fence_poll", "done"),
    ("onebuf_transfer_poll", "done"),
    ("onebuf_gl_buffer_query", "buffer_info"),
    ("onebuf_ledger_asked_bytes", "asked_bytes"),
    ("onebuf_ledger_implied_bytes", "implied_bytes"),
    ("onebuf_ledger_text", "ledger"),
    ("onebuf_trace_json", "trace"),
    ("onebuf_trace_clear", "clear_trace"),
    ("onebuf_library_open", "open_library"),
];

/// Calls that are written by hand, because they have other types or defaults in C++.
const BY_HAND: &[&str] = &[
    "onebuf_buffer_size",
    "onebuf_buffer_flush",
    "onebuf_buffer_to_host",
    "onebuf_buffer_wait_ns",
    "onebuf_context_device_count",
    "onebuf_context_native",
    "onebuf_fence_wait_ns",
    "onebuf_hub_device_count",
    "onebuf_mapping_poll",
    "onebuf_mapping_wait",
    "onebuf_pool_trim",
    "onebuf_trace_save",
    "onebuf_transfer_wait",
    "onebuf_user_event_native",
    "onebuf_view_address",
    "onebuf_view_cl_mem",
];

/// Structures that are classes of their own in C++.
const OTHER_CLASSES: &[&str] = &[
    "onebuf_buffer_options",
    "onebuf_fft_options",
    "onebuf_gemm_options",
    "onebuf_import_options",
    "onebuf_kernel_options",
    "onebuf_map_options",
    "onebuf_observer",
    "onebuf_pipeline_options",
    "onebuf_queue_options",
    "onebuf_synthetic_options",
    "onebuf_udp_sink_options",
    "onebuf_udp_source_options",
    "onebuf_wrap_options",
];

/// Members that structures have besides their fields.
const MEMBERS: &[(&str, &str)] = &[
    (
        "DeviceInfo",
        "    /// What it is.\n    DeviceKind what() const noexcept { return static_cast<DeviceKind>(kind); }\n",
    ),
    (
        "Crossing",
        "    /// The path as a word; `way` is its number.\n    Route route() const noexcept { return static_cast<Route>(way); }\n",
    ),
    (
        "Verdict",
        "    /// The state as a word; `state` is its number.\n    VerdictState what() const noexcept { return static_cast<VerdictState>(state); }\n",
    ),
    (
        "PoolStatistics",
        "    /// How much the peak held exceeds the peak in use, as a fraction of the latter.\n    double fragmentation() const noexcept {\n        return peak_live_bytes > 0 ? static_cast<double>(peak_held_bytes) / static_cast<double>(peak_live_bytes) - 1.0 : 0.0;\n    }\n",
    ),
    (
        "PipelineReport",
        "    double frames_per_second() const noexcept {\n        return elapsed_ns > 0 ? static_cast<double>(frames) * 1e9 / static_cast<double>(elapsed_ns) : 0.0;\n    }\n",
    ),
];

/// `onebuf_host_access` as `HostAccess`.
fn class_of(name: &str) -> String {
    let known = NAMES.iter().find(|(c, _)| *c == name).map(|(_, cpp)| (*cpp).to_owned());
    let parts = name.trim_start_matches("onebuf_").split('_').map(capital);
    known.unwrap_or_else(|| parts.collect())
}

fn capital(part: &str) -> String {
    let (first, rest) = part.split_at(part.len().min(1));
    first.to_uppercase() + &rest.to_lowercase()
}

/// Comment lines of documentation.
fn docs(comment: &[String], indent: &str) -> String {
    comment.iter().fold(String::new(), |mut all, line| {
        let _ = writeln!(all, "{}", format!("{indent}/// {line}").trim_end());
        all
    })
}

/// A type of words, and its constants.
struct Words {
    comment: Comment,
    constants: Vec<(Comment, String)>,
}

impl Words {
    /// How many characters all constants have in common, up to an underscore.
    fn common(&self) -> usize {
        let first = &self.constants[0].1;
        let shared =
            |at: usize| self.constants.iter().all(|(_, name)| name.get(..at) == first.get(..at));
        let ends = first.match_indices('_').map(|(at, _)| at + 1).filter(|at| shared(*at));
        ends.max().unwrap_or(0)
    }

    fn text(&self, name: &str) -> String {
        let (class, from) = (class_of(name), self.common());
        let word = |name: &str| name[from..].split('_').map(capital).collect::<String>();
        let mut text = docs(&self.comment, "");
        let _ = writeln!(text, "enum class {class} : {name} {{");
        for (comment, constant) in &self.constants {
            text += &docs(comment, "    ");
            let _ = writeln!(text, "    {} = {constant},", word(constant));
        }
        text += "};\n";
        let _ = writeln!(
            text,
            "inline const char *to_string({class} word) noexcept {{\n    switch (word) {{"
        );
        for (_, constant) in &self.constants {
            let said = constant[from..].to_lowercase();
            let _ = writeln!(text, "    case {class}::{}: return \"{said}\";", word(constant));
        }
        text + "    }\n    return \"unknown\";\n}\n\n"
    }
}

/// All types of words, by name, in the order of the header.
fn words(all: &[Declaration]) -> Vec<(String, Words)> {
    let mut found: Vec<(String, Words)> = Vec::new();
    let mut open = false;
    for declaration in all {
        match (declaration, found.last_mut()) {
            (Declaration::Alias { name, of, comment }, _) if of == "uint32_t" => {
                open = true;
                let words = Words { comment: comment.clone(), constants: Vec::new() };
                found.push((name.clone(), words));
            }
            (Declaration::Constant { name, comment, .. }, Some((_, words))) if open => {
                words.constants.push((comment.clone(), name.clone()));
            }
            _ => open = false,
        }
    }
    found
}

/// The name and comment of a structure whose first field is called so, and has that type.
fn begins<'d>(one: &'d Declaration, field: &str, of: &str) -> Option<(&'d str, &'d Comment)> {
    let Declaration::Structure { name, fields, comment } = one else { return None };
    let first = fields.first()?;
    (first.name == field && first.of.text() == of).then_some((name.as_str(), comment))
}

/// A structure that begins with its size.
fn sized(one: &Declaration) -> Option<(&str, &Comment)> {
    begins(one, "size", "size_t")
}

/// The name of a handle.
fn handle(one: &Declaration) -> Option<&str> {
    begins(one, "id", "uint64_t").map(|(name, _)| name)
}

fn structure(name: &str, comment: &[String]) -> String {
    let class = class_of(name);
    let members = MEMBERS.iter().find(|(of, _)| *of == class).map_or("", |(_, members)| members);
    docs(comment, "")
        + &format!(
            "struct {class} : {name} {{\n    {class}() : {name}{{}} {{ size = sizeof({name}); }}\n{members}}};\n\n"
        )
}

/// A function that returns a status.
fn function(one: &Declaration) -> Option<&Function> {
    let Declaration::Function(function) = one else { return None };
    (function.result.text() == "onebuf_status").then_some(function)
}

/// What the generator knows about types.
struct Types<'h> {
    words: Vec<&'h str>,
    sized: Vec<&'h str>,
    handles: Vec<&'h str>,
}

impl Types<'_> {
    /// How a parameter is declared in C++, and how it is passed on; `None` if that is more than a translation.
    fn input(&self, kind: &str, name: &str) -> Option<(String, String)> {
        Some(match kind {
            "uint64_t" if name == "timeout_ms" => {
                ("Timeout timeout = {}".into(), "timeout.ms()".into())
            }
            "uint32_t" | "uint64_t" => (format!("std::{kind} {name}"), name.into()),
            "size_t" => (format!("std::size_t {name}"), name.into()),
            "const char *" => (format!("const char *{name}"), name.into()),
            _ if self.words.contains(&kind) => {
                (format!("{} {name}", class_of(kind)), format!("static_cast<{kind}>({name})"))
            }
            _ => return None,
        })
    }

    /// The result's type, and the statement that returns it, for a call with a place for the result.
    fn output(&self, kind: &str, call: &dyn Fn(&str) -> String) -> Option<(String, String)> {
        let of = kind.strip_suffix('*').map(str::trim_end)?;
        let value = |cpp: &str| {
            let pointer = if cpp.ends_with('*') { format!("{cpp}*") } else { format!("{cpp} *") };
            let asked = call("to");
            (
                cpp.to_owned(),
                format!("return detail::value<{cpp}>([&]({pointer}to) {{ return {asked}; }});"),
            )
        };
        Some(match of {
            "onebuf_string" => {
                let asked = call("to");
                let text =
                    format!("return detail::text([&](onebuf_string *to) {{ return {asked}; }});");
                ("std::string".into(), text)
            }
            "bool" => value("bool"),
            "uint32_t" => value("std::uint32_t"),
            "uint64_t" => value("std::uint64_t"),
            "size_t" => value("std::size_t"),
            "void *" => value("void *"),
            _ if self.words.contains(&of) => {
                let class = class_of(of);
                let text = format!(
                    "{of} found = 0;\n        onebuf_status status = {};\n        \
                     return detail::result(status, [&] {{ return static_cast<{class}>(found); }});",
                    call("&found")
                );
                (class, text)
            }
            _ if self.sized.contains(&of) => {
                let class = class_of(of);
                let text = format!(
                    "{class} found;\n        onebuf_status status = {};\n        \
                     return detail::result(status, [&] {{ return found; }});",
                    call("&found")
                );
                (class, text)
            }
            _ => return None,
        })
    }

    /// The method for a function; `None` if it has to be written by hand.
    fn method(&self, function: &Function) -> Option<String> {
        let parameters: Vec<(String, String)> =
            function.parameters.iter().map(|this| (this.of.text(), this.name.clone())).collect();
        let ((owner, _), rest) = parameters.split_first()?;
        if !self.handles.contains(&owner.as_str()) || BY_HAND.contains(&function.name.as_str()) {
            return None;
        }
        let call = |inputs: &[(String, String)], to: &str| {
            let inputs: String = inputs.iter().map(|(_, passed)| format!(", {passed}")).collect();
            let to = if to.is_empty() { String::new() } else { format!(", {to}") };
            format!("{}(handle(){inputs}{to})", function.name)
        };
        let inputs = |list: &[(String, String)]| -> Option<Vec<(String, String)>> {
            list.iter().map(|(kind, name)| self.input(kind, name)).collect()
        };
        let (given, result, body) = match inputs(rest) {
            Some(given) => {
                let body = format!("return detail::check({});", call(&given, ""));
                (given, "void".to_owned(), body)
            }
            None => {
                let ((kind, _), before) = rest.split_last()?;
                let given = inputs(before)?;
                let (result, body) = self.output(kind, &|to| call(&given, to))?;
                (given, result, body)
            }
        };
        let list: Vec<&str> = given.iter().map(|(declared, _)| declared.as_str()).collect();
        let name = method_name(&function.name, owner);
        Some(format!(
            "{}    Result<{result}> {name}({}) const {{\n        {body}\n    }}\n",
            docs(&function.comment, "    "),
            list.join(", ")
        ))
    }
}

fn method_name(function: &str, owner: &str) -> String {
    if let Some((_, known)) = NAMES.iter().find(|(c, _)| *c == function) {
        return (*known).to_owned();
    }
    let rest = function.strip_prefix(&format!("{owner}_"));
    let rest = rest.unwrap_or_else(|| function.trim_start_matches("onebuf_"));
    match rest {
        "query" => "info".into(),
        rest => rest.strip_prefix("get_").unwrap_or(rest).to_owned(),
    }
}

/// The class of a handle: its ownership, and its calls.
fn class(name: &str, free: Option<&str>, methods: &[String]) -> String {
    let class = class_of(name) + "Handle";
    let (base, lifetime) = match free {
        Some(free) => {
            (format!(" : public Owner<{name}, {free}>"), "    using Owner::Owner;\n".to_owned())
        }
        None => (
            String::new(),
            format!(
                "    {class}() = default;\n    explicit {class}({name} handle) noexcept : handle_(handle) {{}}\n    \
                 {name} handle() const noexcept {{ return handle_; }}\n"
            ),
        ),
    };
    let state = if free.is_none() {
        format!("\nprivate:\n    {name} handle_{{0}};\n")
    } else {
        String::new()
    };
    let methods: String = methods.iter().map(|method| format!("\n{method}")).collect();
    format!("class {class}{base} {{\npublic:\n{lifetime}{methods}{state}}};\n\n")
}

const TOP: &str = "// The part of onebuf.hpp that repeats onebuf.h in C++: words, structures, and classes of handles with their simple calls.
//
// Generated by `./dev header` from crates/onebuf-capi/src; do not edit. Include onebuf.hpp, which includes this.

#ifndef ONEBUF_TYPES_HPP
#define ONEBUF_TYPES_HPP

#ifndef ONEBUF_HPP
#error \"include onebuf.hpp\"
#endif

namespace onebuf {

// Constants =======================================================================================

";

/// The generated header.
pub fn generated() -> String {
    let parsed = |name: &&str| items(name).into_iter().map(|item| Declaration::parse(&item.text));
    let all: Vec<Declaration> = SECTIONS.iter().flat_map(parsed).collect();
    let words = words(&all);
    let is_class = |(name, _): &(&str, &Comment)| !OTHER_CLASSES.contains(name);
    let types = Types {
        words: words.iter().map(|(name, _)| name.as_str()).collect(),
        sized: all.iter().filter_map(sized).filter(is_class).map(|(name, _)| name).collect(),
        handles: all.iter().filter_map(handle).collect(),
    };
    let functions: Vec<&Function> = all.iter().filter_map(function).collect();
    let mut methods: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for function in &functions {
        let first = function.parameters.first().map(|this| this.of.text());
        let owner = types.handles.iter().find(|handle| first.as_deref() == Some(handle));
        if let (Some(owner), Some(method)) = (owner, types.method(function)) {
            methods.entry(*owner).or_default().push(method);
        }
    }
    let mut made = TOP.to_owned();
    words.iter().for_each(|(name, words)| made += &words.text(name));
    made += "// Structures ======================================================================================\n\n";
    for (name, comment) in all.iter().filter_map(sized).filter(is_class) {
        made += &structure(name, comment);
    }
    made += "// Handles =========================================================================================\n\nnamespace detail {\n\n";
    for name in &types.handles {
        let ends = ["free", "unmap"].map(|end| format!("{name}_{end}"));
        let free = functions
            .iter()
            .map(|one| one.name.as_str())
            .find(|one| ends.iter().any(|end| end == one));
        let of: Vec<String> = methods.remove(name).unwrap_or_default();
        // Freeing is the destructor's.
        let of: Vec<String> = of
            .into_iter()
            .filter(|text| free.is_none_or(|free| !text.contains(&format!("{free}("))))
            .collect();
        made += &class(name, free, &of);
    }
    made + "} // namespace detail\n\n} // namespace onebuf\n\n#endif\n"
}

#[test]
fn the_types_of_cpp_are_what_the_sources_say() {
    let (file, wanted) = (path("include/onebuf_types.hpp"), generated());
    if std::env::var_os("ONEBUF_WRITE_HEADER").is_some() {
        return fs::write(file, wanted).expect("the header");
    }
    differs("include/onebuf_types.hpp", &fs::read_to_string(&file).unwrap_or_default(), &wanted);
}

/// A function without a class of its own in C++ would be forgotten.
#[test]
fn every_word_and_structure_has_its_class() {
    let text = generated();
    for part in [
        "enum class Access : onebuf_access {",
        "    ReadWrite = ONEBUF_READ_WRITE,",
        "case SyncMethod::HostWait: return \"host_wait\";",
        "struct HubOptions : onebuf_hub_options {",
        "class FenceHandle : public Owner<onebuf_fence, onebuf_fence_free> {",
        "    Result<SyncMethod> sync_method() const {",
        "    Result<void> finish(Timeout timeout = {}) const {",
        "class DeviceHandle {",
    ] {
        assert!(text.contains(part), "no `{part}`");
    }
}
