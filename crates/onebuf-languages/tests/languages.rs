//! `docs/languages.md` names everything that a language has.

use onebuf_languages::{
    c,
    check::{Names, problems},
    collect, cpp,
    fortran::Modules,
    page::page,
    python::Package,
    rust::Sources,
    table::{self, Cell, Language, Row, Section},
};
use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn the_table() -> Vec<Section> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("table");
    table::read(&folder).unwrap_or_else(|why| panic!("{why}"))
}

fn the_names() -> &'static Names {
    static NAMES: OnceLock<Names> = OnceLock::new();
    NAMES.get_or_init(|| collect(&root()))
}

#[test]
fn every_name_is_in_the_table() {
    let problems = problems(&the_table(), the_names());
    let count = problems.len();
    assert_eq!(count, 0, "{count} problems; edit table/ of this crate:\n{}", problems.join("\n"));
    // What is collected is no less than it was.
    let counts = the_names().of.each_ref().map(BTreeSet::len);
    assert!(
        counts.iter().zip([1300, 800, 400, 100, 140]).all(|(n, least)| *n >= least),
        "{counts:?}"
    );
}

#[test]
fn the_page_is_what_the_table_says() {
    let (file, wanted) = (root().join("docs/languages.md"), page(&the_table()));
    if env::var_os("ONEBUF_WRITE_LANGUAGES").is_some() {
        return fs::write(file, wanted).expect("the page");
    }
    let found = fs::read_to_string(&file).unwrap_or_default();
    assert!(found == wanted, "docs/languages.md differs from the table: run `./dev languages`");
}

/// The problems that a change of the names makes.
fn new_problems(change: impl FnOnce(&mut Names)) -> Vec<String> {
    let (table, mut names) = (the_table(), the_names().clone());
    let before = problems(&table, &names);
    change(&mut names);
    let mut new = problems(&table, &names);
    new.retain(|problem| !before.contains(problem));
    new
}

fn the_problem(change: impl FnOnce(&mut Names)) -> String {
    let new = new_problems(change);
    let [problem] = &new[..] else { panic!("{new:?}") };
    problem.clone()
}

#[test]
fn what_is_new_in_one_language_is_missed() {
    let include = root().join("crates/onebuf-capi/include");
    let header = fs::read_to_string(include.join("onebuf.h")).expect("onebuf.h");
    let classes = ["onebuf_types.hpp", "onebuf.hpp"]
        .map(|name| fs::read_to_string(include.join(name)).expect("a header"))
        .concat();

    let function = header.replacen(
        "onebuf_status onebuf_queue_flush(",
        "onebuf_status onebuf_queue_seeded(onebuf_queue queue);\nonebuf_status onebuf_queue_flush(",
        1,
    );
    let said = the_problem(|names| names.of[1] = c::read(&function).names);
    assert_eq!(said, "C has onebuf_queue_seeded, and no row of the table");

    let field = header.replacen(
        "} onebuf_buffer_options;",
        "    uint32_t seeded;\n} onebuf_buffer_options;",
        1,
    );
    let said = the_problem(|names| names.of[1] = c::read(&field).names);
    assert_eq!(said, "C has onebuf_buffer_options.seeded, and no row of the table");

    let method = classes.replacen(
        "Result<void> flush() const",
        "Result<void> seeded() const;\n    Result<void> flush() const",
        1,
    );
    let said = the_problem(|names| names.of[2] = cpp::names(&method));
    assert_eq!(said, "C++ has Queue::seeded, and no row of the table");

    for (at, name) in [(0, "HubBuilder::seeded"), (3, "seeded_call"), (3, "pool_counts%seeded")] {
        let said = the_problem(|names| assert!(names.of[at].insert(name.into())));
        assert!(said.contains(name), "{said}");
    }
}

fn stubs_folder() -> PathBuf {
    root().join("crates/onebuf-python/python/onebuf")
}

/// The stubs of the package, by module.
fn the_stubs() -> Vec<(String, String)> {
    let files = fs::read_dir(stubs_folder()).expect("the stubs").flatten();
    let stubs = files.filter_map(|file| {
        let name = file.file_name().into_string().ok()?.strip_suffix(".pyi")?.to_owned();
        Some((name, fs::read_to_string(file.path()).expect("a stub")))
    });
    let mut stubs: Vec<_> = stubs.collect();
    stubs.sort();
    stubs
}

/// The problem that a change of one stub makes.
fn the_problem_of(module: &str, before: &str, after: &str) -> String {
    let mut stubs = the_stubs();
    let (_, text) = stubs.iter_mut().find(|(name, _)| name == module).expect("the module");
    assert!(text.contains(before), "{module} has no {before}");
    *text = text.replacen(before, after, 1);
    the_problem(|names| names.of[4] = Package::of(stubs).public_names())
}

#[test]
fn what_is_new_or_gone_in_python_is_noticed() {
    let method = "    def flush(self) -> None: ...\n";
    let seeded = format!("    def seeded(\n        self, x: int\n    ) -> None: ...\n{method}");
    let said = the_problem_of("_onebuf", method, &seeded);
    assert_eq!(said, "Python has Queue.seeded, and no row of the table");
    let said = the_problem_of("_onebuf", method, "");
    assert_eq!(said, "the table has Queue.flush, which Python has not");

    let class = "class Kernel:\n";
    let seeded = format!("{class}    @property\n    def seeded(self) -> int: ...\n");
    let said = the_problem_of("_onebuf", class, &seeded);
    assert_eq!(said, "Python has Kernel.seeded, and no row of the table");
    let said =
        the_problem_of("errors", "    after_ms: int\n", "    after_ms: int\n    seeded: int\n");
    assert_eq!(said, "Python has Timeout.seeded, and no row of the table");

    let list = "__all__ = [\n";
    for seeded in ["SEEDED: int", "def SEEDED() -> None: ...", "class SEEDED: ..."] {
        let said = the_problem_of("__init__", list, &format!("{seeded}\n{list}"));
        assert_eq!(said, "Python has SEEDED, and no row of the table");
    }
    let file = "sink_file as file\n";
    let seeded = format!("{file}from ._onebuf import sink_udp as sink_udp\n");
    let said = the_problem_of("sinks", file, &seeded);
    assert_eq!(said, "Python has sinks.sink_udp, and no row of the table");
}

/// Arguments in notes, such as `copies=`, are in the stubs.
#[test]
fn arguments_in_the_notes_of_python_exist() {
    let stubs = the_stubs().into_iter().map(|(_, text)| text).collect::<String>();
    let mut checked = 0;
    for row in the_table().iter().flat_map(|section| &section.rows) {
        let Row::Capability(what, cells) = row else { continue };
        let Cell::Names(_, Some(note)) = &cells[Language::Python as usize] else { continue };
        for name in note.split('`').filter_map(|word| word.strip_suffix('=')) {
            assert!(stubs.contains(&format!(" {name}: ")), "{what}: no function takes {name}");
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}

#[test]
fn what_is_gone_is_noticed() {
    let said = the_problem(|names| assert!(names.of[2].remove("Queue::flush")));
    assert_eq!(said, "the table has Queue::flush, which C++ has not");
    // Where C++ has no words of its own it needs the structure.
    let said = new_problems(|names| assert!(names.cpp_structures.remove("onebuf_hub_options")));
    assert!(
        said.iter().any(|said| said.contains("C++ needs a line, because of onebuf_hub_options.")),
        "{said:?}"
    );
    assert!(!the_names().cpp_structures.contains("onebuf_buffer_options"), "hidden by a class");
    // Where Fortran has no words of its own it needs the generated ones.
    let said = the_problem(|names| assert!(names.by_onebuf_c.remove("onebuf_buffer_detach")));
    assert!(said.contains("Fortran needs a line, because of onebuf_buffer_detach"), "{said}");
}

#[test]
fn a_table_must_be_complete() {
    let refused = |text: &str| table::parse(text).expect_err("a refusal");
    assert!(refused("a row\nrust: x").contains("before the first section"));
    assert!(refused("# S\n\na row\nrust: x").contains("Rust and C need a line each"));
    assert!(refused("# S\n\na row\nrust: x\nc: - missing").contains("no reason"));
    assert!(refused("# S\n\na row\nrust: x\nperl: y").contains("an unknown language"));
    let parsed = table::parse("# S\n\nonly rust: why\nfake::*, a::{b,\nc}").expect("a table");
    let names = Names {
        of: [
            ["fake::X", "a::b", "a::c"].map(String::from).into(),
            [].into(),
            [].into(),
            [].into(),
            [].into(),
        ],
        ..Names::default()
    };
    assert_eq!(problems(&parsed, &names), Vec::<String>::new());
}

#[test]
fn headers_are_read_as_compilers_do() {
    let found = c::read(
        "#define ONEBUF_A 1\n#ifdef __cplusplus\nextern \"C\" {\n#endif\ntypedef uint32_t onebuf_kind; // onebuf_no(\n\
         typedef struct onebuf_s {\n int a[3];\n void (*call)(int, void *);\n const char *const *list;\n} onebuf_s;\n\
         typedef void (*onebuf_f)(int);\nonebuf_status onebuf_go(onebuf_s s,\n  int *x);\n\
         static inline int onebuf_in(void) { return onebuf_go(0); }\n}\n",
    );
    let all = ["ONEBUF_A", "onebuf_f", "onebuf_go", "onebuf_in", "onebuf_kind", "onebuf_s"];
    let fields = ["onebuf_s.a", "onebuf_s.call", "onebuf_s.list"];
    assert_eq!(found.names, all.iter().chain(&fields).map(|name| (*name).into()).collect());
    let types = found.types.keys().map(String::as_str);
    assert_eq!(Vec::from_iter(types), ["onebuf_f", "onebuf_kind", "onebuf_s"]);
}

#[test]
fn classes_are_read_as_compilers_do() {
    let found = cpp::names(
        "namespace onebuf {\nnamespace detail { void hidden(); class Base : public Owner<int> { public: int inherited(); private: int no; }; }\n\
         enum class E : int { A = 1, B };\nclass Later;\nclass Child : public detail::Base { public: int own(); };\n\
         template <class T, class = typename std::enable_if<(1 > 0)>::type> class C : public detail::Owner<int, f> {\n int own();\n\
         public:\n using Owner::Owner;\n C() : a_(1), b_{2} { go(); }\n ~C();\n C &operator=(C &&) = delete;\n\
         template <class F> Result<std::vector<int>> call(F f = {}) const { if (f) { return {}; } return {}; }\n\
         friend bool operator==(C a, C b);\n static C make();\n private:\n void no();\n int a_ = 1;\n};\n\
         struct S : onebuf_s {\n int x = 1, y{2};\n std::function<void(int)> z;\n enum class Inner { I };\n};\n\
         inline int C::outside() { return 1; }\nnamespace bridge { inline int copy(int a) { return a; } }\n\
         using Alias = int;\n}",
    );
    let wanted = [
        "Alias",
        "C",
        "C::call",
        "C::make",
        "Child",
        "Child::inherited",
        "Child::own",
        "E",
        "E::A",
        "E::B",
        "S",
        "S::Inner",
        "S::Inner::I",
        "S::x",
        "S::y",
        "S::z",
        "bridge::copy",
    ];
    assert_eq!(found, wanted.map(String::from).into());
}

/// Writes files below a new folder.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, text).expect("a file");
    }
    folder
}

#[test]
fn rust_is_followed_through_its_crates() {
    let folder = folder(&[
        (
            "onebuf/src/lib.rs",
            "mod own; pub mod deep; use onebuf_core as core; pub use core::{Type, words}; pub use own::trait_in as named;
             pub use onebuf_core::both; pub use std_like::Thing; #[cfg(test)] pub use own::Test; #[doc(hidden)] pub mod away {}",
        ),
        ("onebuf/src/own.rs", "pub fn trait_in() {} fn private() {} pub struct Test; pub struct Unseen { pub field: u8 }"),
        ("onebuf/src/deep/mod.rs", "pub trait Ext { fn more(&self); #[doc(hidden)] fn no(&self); } pub use crate::named as again;"),
        (
            "onebuf-core/src/lib.rs",
            "#[doc(hidden)] pub mod part; mod both; pub use both::both; pub mod words { pub use onebuf_hal::Word; }
             pub struct Type { pub field: u8, hidden: u8 }
             impl Clone for Type { fn clone(&self) {} }
             macro_rules! made { ($(#[$d:meta])* $name:ident { $($f:ident,)* }) => {
                 pub struct $name<T> { $(pub $f: u8,)* } impl<T> $name<T> { pub fn by_macro(&self) {} fn not(&self) {} }
             } }
             made!(/// Documented.\n Made { count, });
             pub use part::Other;",
        ),
        ("onebuf-core/src/both.rs", "pub fn both() {} pub struct Nobody;"),
        ("onebuf-core/src/part.rs", "use crate::Type; pub struct Other; impl Type { pub fn go(&self) {} pub(crate) fn no(&self) {} }"),
        ("onebuf-hal/src/lib.rs", "pub enum Word { One, Two(u8) } impl Word { pub const ALL: u8 = 1; }"),
    ]);
    let found = Sources::new(folder.path()).public_names("onebuf");
    let wanted = [
        "Thing",
        "Type",
        "Type.field",
        "Type::go",
        "both",
        "deep::Ext",
        "deep::Ext::more",
        "named",
        "words::Word",
        "words::Word::ALL",
        "words::Word::One",
        "words::Word::Two",
    ];
    assert_eq!(found, wanted.map(String::from).into());
    let found = Sources::new(folder.path()).public_names("onebuf_core");
    assert!(
        ["Made", "Made.count", "Made::by_macro"].iter().all(|name| found.contains(*name)),
        "{found:?}"
    );
    assert!(!found.contains("Made::not"), "{found:?}");
}

#[test]
fn fortran_is_followed_through_its_modules() {
    let folder = folder(&[
        (
            "a.f90",
            "module a\n  private\n  public :: open_it, Counts, & ! a comment\n    CLOSE_IT\n  include 'more.inc'\n  type :: counts\n    integer :: hits, misses = 0\n  end type\n  type :: closed\n    private\n    integer :: no\n  end type\nend module",
        ),
        ("more.inc", "public :: more\n"),
        (
            "b.f90",
            "module b\n  use a\n  use c, only: one\n  implicit none\n  public\n  private :: close_it\nend module",
        ),
        (
            "c.f90",
            "module c\n  public\n  integer, parameter :: ONE = 1\n  type, bind(c) :: c_options\n    integer(c_int) :: depth = 0\n  end type\n  interface\n    function c_go(x) bind(c)\n    end function\n  end interface\nend module",
        ),
    ]);
    let modules = Modules::read(folder.path());
    let wanted = ["counts", "counts%hits", "counts%misses", "more", "one", "open_it"];
    assert_eq!(modules.public_names("b"), wanted.map(String::from).into());
    let wanted = ["c_go", "c_options", "c_options.depth", "one"];
    assert_eq!(modules.public_names("c"), wanted.map(String::from).into());
}

#[test]
fn python_is_followed_through_its_stubs() {
    let folder = folder(&[
        (
            "__init__.pyi",
            "from . import errors as errors\nfrom ._native import Buffer as Buffer, Hidden\nfrom ._native import __version__ as __version__\n\
             from ._native import make as renamed\nfrom .errors import *\nfrom numpy import array as array\n__all__: list[str]\n",
        ),
        (
            "_native.pyi",
            "\"\"\"Text.\nclass No: ...\n\"\"\"\nfrom ._base import _Base\n_Alias: TypeAlias = int\n__version__: str\n\n\
             @final\nclass Buffer(_Base[int], Other):  # a comment: no\n    \"\"\"It is.\"\"\"\n    LIMIT = 3\n    @property\n    def size(self) -> int: ...\n\
             \u{20}   def copy(\n        self,\n        to: tuple[int,\n            int],\n        again: int = 0,\n    ) -> None: ...\n\
             \u{20}   def _private(self) -> None: ...\n    def __len__(self) -> int: ...\n    class Inner:\n        field: int\n    after: int\n\
             \u{20}   if sys.version_info >= (3, 12):\n        def newer(self) -> int: ...\n    else:\n        async def older(self) -> int: ...\n\n\
             class Hidden:\n    no: int\n\ndef make(x: int = ...) -> Buffer: ...\n",
        ),
        ("_base.pyi", "class _Base(Generic[T]):\n    def inherited(self) -> int: ...\n"),
        ("errors.pyi", "class Error(Exception):\n    code: int\nclass Lost(Error): ...\n"),
        (
            "makers.pyi",
            "from ._native import make as by_hand\nfrom ._native import Buffer as Buffer\nfrom ._native import Hidden as Unlisted\n\
             __all__ = [\n    \"Buffer\",\n    \"by_hand\",\n]\nDEPTH: int\n",
        ),
        ("py.typed", ""),
        ("_other.py", "class Source: pass\n"),
    ]);
    let found = Package::read(folder.path()).public_names();
    let wanted = [
        "Buffer",
        "Buffer.Inner",
        "Buffer.Inner.field",
        "Buffer.LIMIT",
        "Buffer.after",
        "Buffer.copy",
        "Buffer.inherited",
        "Buffer.newer",
        "Buffer.older",
        "Buffer.size",
        "Error",
        "Error.code",
        "Lost",
        "makers.DEPTH",
        "makers.by_hand",
    ];
    assert_eq!(found, wanted.map(String::from).into());
}
