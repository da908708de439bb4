//! The argument packing of a kernel that was compiled for another API.
//!
//! Such a kernel takes local memory by parameters, and needs launch parameters that this API does not pass. Comments at the
//! beginning of its image describe them, so that image and packing stay together, also on disk. A driver ignores comments in a
//! program text; machine code is extracted from behind them.

use crate::{Error, Result};
use std::fmt;

/// The beginning of the first line of such an image.
const MAGIC: &str = "// onebuf packing 1";
const KERNEL: &str = "// kernel ";
const TARGET: &str = "// target ";
/// Magic numbers of machine code, and of bundles of machine code or intermediate code.
const CODE: [&[u8]; 2] = [b"\x7fELF", b"__CLANG_OFFLOAD_BUNDLE__"];

/// How one argument is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The address of a buffer.
    Memory,
    /// A value of this many bytes.
    Value(usize),
    /// Group-local memory with this alignment, passed as an offset into the launch's local memory.
    Local(usize),
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slot::Memory => f.write_str("a buffer"),
            Slot::Value(bytes) => write!(f, "a value of {bytes} bytes"),
            Slot::Local(_) => f.write_str("local memory"),
        }
    }
}

/// A launch parameter, passed after the arguments: 32 bits in PTX, as many as the kernel needs in machine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// The global offset in a dimension.
    Offset(usize),
    /// The number of dimensions.
    Dims,
}

/// The parameters of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// The kernel's name.
    pub name: String,
    /// One for each argument.
    pub slots: Vec<Slot>,
    /// Launch parameters, passed after the arguments.
    pub hidden: Vec<Hidden>,
    /// The group size that it was compiled for.
    pub group: Option<[usize; 3]>,
    /// Whether it may be launched with a global offset.
    pub takes_offsets: bool,
    /// Bytes of its own group-local memory, after which that of the arguments begins; zero if the driver handles it.
    pub static_local: usize,
    /// Whether the number of dimensions that it gets is always three.
    pub three_dims: bool,
    /// Whether each local argument is separate memory, as large as the launch's and passed without a value; its
    /// parameter is a placeholder.
    pub locals_apart: bool,
}

/// The machine code of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'i> {
    /// Its GPU target, if stated.
    pub target: Option<&'i str>,
    /// The machine code.
    pub code: &'i [u8],
}

/// Writes the comments at the beginning of an image.
pub fn write(kernels: &[Packing]) -> String {
    let lines = kernels.iter().map(|kernel| format!("{KERNEL}{}\n", line(kernel)));
    format!("{MAGIC}\n{}", lines.collect::<String>())
}

/// Writes the comments before machine code for a GPU target.
pub fn write_for(target: Option<&str>, kernels: &[Packing]) -> String {
    write(kernels) + &target.map(|target| format!("{TARGET}{target}\n")).unwrap_or_default()
}

fn line(kernel: &Packing) -> String {
    let slots = kernel.slots.iter().map(|slot| match slot {
        Slot::Memory => "memory".to_owned(),
        Slot::Value(bytes) => format!("value:{bytes}"),
        Slot::Local(align) => format!("local:{align}"),
    });
    let hidden = kernel.hidden.iter().map(|hidden| match hidden {
        Hidden::Offset(dimension) => format!("offset:{dimension}"),
        Hidden::Dims => "dims".to_owned(),
    });
    let group = kernel.group.map(|[x, y, z]| format!("group:{x}:{y}:{z}"));
    let fixed = (!kernel.takes_offsets).then(|| "from-zero".to_owned());
    let own = (kernel.static_local > 0).then(|| format!("static:{}", kernel.static_local));
    let three = kernel.three_dims.then(|| "three-dims".to_owned());
    let apart = kernel.locals_apart.then(|| "locals-apart".to_owned());
    let facts = [group, fixed, own, three, apart].into_iter().flatten();
    let words = [kernel.name.clone()].into_iter().chain(slots).chain(hidden).chain(facts);
    words.collect::<Vec<_>>().join(" ")
}

/// Reads the packing of an image; `None` if it has none, as most images do.
pub fn read(image: &[u8]) -> Result<Option<Vec<Packing>>> {
    if !image.starts_with(MAGIC.as_bytes()) {
        return Ok(None);
    }
    let lines = image.split(|byte| *byte == b'\n').skip(1);
    let lines = lines.map_while(|line| std::str::from_utf8(line).ok()?.strip_prefix(KERNEL));
    lines.map(read_line).collect::<Result<Vec<_>>>().map(Some)
}

/// The machine code of an image; `None` if the image is a program text.
pub fn object(image: &[u8]) -> Option<Object<'_>> {
    if !image.starts_with(MAGIC.as_bytes()) {
        return None;
    }
    let (mut code, mut target) = (image, None);
    while code.starts_with(b"// ") {
        let end = code.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(&code[..end]).ok()?;
        target = target.or(line.strip_prefix(TARGET));
        code = &code[end + 1..];
    }
    CODE.iter().any(|magic| code.starts_with(magic)).then_some(Object { target, code })
}

fn read_line(line: &str) -> Result<Packing> {
    let wrong = || Error::invalid(format!("no packing of a kernel: `{line}`"));
    let mut words = line.split(' ');
    let name = words.next().ok_or_else(wrong)?.to_owned();
    let mut packing = Packing { name, takes_offsets: true, ..Packing::default() };
    for word in words {
        packing.note(word).ok_or_else(wrong)?;
    }
    Ok(packing)
}

impl Packing {
    fn note(&mut self, word: &str) -> Option<()> {
        let mut parts = word.split(':');
        let what = parts.next()?;
        let numbers: Vec<usize> = parts.map(|part| part.parse().ok()).collect::<Option<_>>()?;
        match (what, &numbers[..]) {
            ("memory", []) => self.slots.push(Slot::Memory),
            ("value", [bytes]) => self.slots.push(Slot::Value(*bytes)),
            ("local", [align]) if align.is_power_of_two() => self.slots.push(Slot::Local(*align)),
            ("offset", [dimension @ 0..3]) => self.hidden.push(Hidden::Offset(*dimension)),
            ("dims", []) => self.hidden.push(Hidden::Dims),
            ("group", [x, y, z]) => self.group = Some([*x, *y, *z]),
            ("from-zero", []) => self.takes_offsets = false,
            ("static", [bytes]) => self.static_local = *bytes,
            ("three-dims", []) => self.three_dims = true,
            ("locals-apart", []) => self.locals_apart = true,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packing() -> Packing {
        Packing {
            name: "k".into(),
            slots: vec![Slot::Memory, Slot::Value(12), Slot::Local(16)],
            hidden: vec![Hidden::Offset(2), Hidden::Dims],
            group: Some([32, 2, 1]),
            takes_offsets: false,
            static_local: 48,
            three_dims: true,
            locals_apart: true,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let other = Packing { name: "j".into(), takes_offsets: true, ..Packing::default() };
        let text = write(&[packing(), other.clone()]) + ".version 8.0\n// kernel none of it\n";
        assert_eq!(read(text.as_bytes()), Ok(Some(vec![packing(), other])));
        assert_eq!(read(b".version 8.0"), Ok(None));
        assert_eq!(read(&[0x7f, b'E', b'L', b'F']), Ok(None));
    }

    #[test]
    fn machine_code_is_found_behind_its_packing() {
        let image =
            |target, code: &[u8]| [write_for(target, &[packing()]).as_bytes(), code].concat();
        let code = &b"\x7fELF\n// kernel none of it\n\xff"[..];
        let bundle = &b"__CLANG_OFFLOAD_BUNDLE__\0"[..];
        for (target, code) in [(None, code), (Some("gfx90a:xnack-"), code), (None, bundle)] {
            let image = image(target, code);
            assert_eq!(object(&image), Some(Object { target, code }));
            assert_eq!(read(&image), Ok(Some(vec![packing()])));
        }
        assert_eq!(object(&image(None, b".version 8.0")), None);
        assert_eq!(object(code), None);
        assert_eq!(object(MAGIC.as_bytes()), None);
    }

    #[test]
    fn other_words_are_refused() {
        for wrong in
            ["memory:1", "value", "local:3", "local:0", "offset:3", "group:1:2", "static", "", "x"]
        {
            let text = format!("{MAGIC}\n{KERNEL}k {wrong}\n");
            assert!(read(text.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
