//! The header of a NumPy file (`.npy`): a strict parser, and a writer.
//!
//! Layout: magic, version, length of the dictionary, then a Python dictionary with `descr`, `fortran_order` and `shape`.

use bytemuck::Pod;
use onebuf_core::{Complex32, Complex64};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The writer pads the header so that the data begins at a multiple of this.
const ALIGN: usize = 64;

/// The longest header accepted. NumPy and this writer never exceed it.
pub(super) const MOST: usize = 1 << 16;

/// An element type that `.npy` files support.
pub trait NpyElement: Pod {
    /// NumPy's name of the type, little-endian: `<f4`, `<c8` …
    const DESCR: &'static str;
}

macro_rules! elements {
    ($($type:ty = $descr:literal),*) => {
        $(impl NpyElement for $type { const DESCR: &'static str = $descr; })*
    };
}

elements!(
    u8 = "|u1",
    i8 = "|i1",
    u16 = "<u2",
    i16 = "<i2",
    u32 = "<u4",
    i32 = "<i4",
    u64 = "<u8",
    i64 = "<i8",
    half::f16 = "<f2",
    f32 = "<f4",
    f64 = "<f8",
    Complex32 = "<c8",
    Complex64 = "<c16"
);

/// The parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub descr: String,
    pub fortran_order: bool,
    pub shape: Vec<u64>,
    /// The offset of the data.
    pub data: u64,
}

impl Head {
    /// Parses the header from a file's first bytes. Errors name the offset.
    pub fn parse(file: &[u8]) -> Result<Self, String> {
        if file.get(..6) != Some(MAGIC) {
            return Err("not a NumPy file: it does not begin with `\\x93NUMPY`".into());
        }
        let short = || format!("the file ends at offset {}, inside its header", file.len());
        let number = |range| file.get(range).ok_or_else(short);
        let version = number(6..8)?[0];
        let (begin, length) = match version {
            1 => (10, number(8..10)?.iter().rev().fold(0, |sum, &b| sum << 8 | usize::from(b))),
            2 | 3 => (12, number(8..12)?.iter().rev().fold(0, |sum, &b| sum << 8 | usize::from(b))),
            other => {
                return Err(format!(
                    "version {other} at offset 6: versions 1, 2 and 3 are supported"
                ));
            }
        };
        if length > MOST - begin {
            return Err(format!(
                "a header of {length} bytes at offset 8: at most {MOST} are allowed"
            ));
        }
        let text = file.get(begin..begin + length).ok_or_else(short)?;
        let text = std::str::from_utf8(text).map_err(|error| {
            format!("the header is not UTF-8 at offset {}", begin + error.valid_up_to())
        })?;
        Reader { text, at: 0 }
            .dictionary((begin + length) as u64)
            .map_err(|(at, wanted)| format!("expected {wanted} at offset {}", begin + at))
    }

    /// Checks the element type, and that the order is C's.
    pub fn check(&self, descr: &str) -> Result<(), String> {
        if self.descr != descr {
            return Err(format!("field `descr` is `{}`, expected `{descr}`", self.descr));
        }
        match self.fortran_order {
            true => Err("field `fortran_order` is True: save it in C order (`order=\"C\"`)".into()),
            false => Ok(()),
        }
    }

    /// The offsets of the data's begin and end.
    pub fn extent(&self, element: usize) -> Result<(u64, u64), String> {
        let times = |bytes: u64, &axis| bytes.checked_mul(axis);
        let bytes = self.shape.iter().try_fold(element as u64, times);
        let end = bytes.and_then(|bytes| self.data.checked_add(bytes));
        let end = end.filter(|&end| end > self.data);
        let what = || format!("field `shape` is {:?}: empty or too large", self.shape);
        end.map(|end| (self.data, end)).ok_or_else(what)
    }

    /// Writes a version 1 header for `frames` frames of a shape. Its length does not depend on the number of frames.
    pub fn write(descr: &str, frames: u64, frame: &[usize]) -> Result<Vec<u8>, String> {
        let axes: String = frame.iter().map(|axis| format!(", {axis}")).collect();
        let first = if frame.is_empty() { format!("{frames},") } else { frames.to_string() };
        let text =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({first}{axes}), }}");
        // Reserves space for any number of frames.
        let most = 10 + text.len() - frames.to_string().len() + 20 + 1;
        let whole = most.next_multiple_of(ALIGN);
        let length =
            u16::try_from(whole - 10).map_err(|_| "the shape has too many axes".to_owned())?;
        let mut head = [MAGIC, &[1, 0][..], &length.to_le_bytes(), text.as_bytes()].concat();
        head.resize(whole - 1, b' ');
        head.push(b'\n');
        Ok(head)
    }
}

/// A position in the header's text. Errors hold the offset and what was expected.
struct Reader<'t> {
    text: &'t str,
    at: usize,
}

type Read<T> = Result<T, (usize, &'static str)>;

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Reads `what` if it comes next, and returns whether it did.
    fn takes(&mut self, what: &str) -> bool {
        self.skip_space();
        let takes = self.rest().starts_with(what);
        self.at += if takes { what.len() } else { 0 };
        takes
    }

    fn wants(&mut self, what: &'static str) -> Read<()> {
        if self.takes(what) { Ok(()) } else { Err((self.at, what)) }
    }

    /// Reads all three fields, in any order, and nothing after them.
    fn dictionary(mut self, data: u64) -> Read<Head> {
        let (mut descr, mut order, mut shape) = (None, None, None);
        self.wants("{")?;
        while !self.takes("}") {
            let start = self.at;
            let key = self.quoted()?;
            self.wants(":")?;
            let twice = match key {
                "descr" => descr.replace(self.quoted()?.to_owned()).is_some(),
                "fortran_order" => order.replace(self.truth()?).is_some(),
                "shape" => shape.replace(self.tuple()?).is_some(),
                _ => return Err((start, "`descr`, `fortran_order` or `shape`")),
            };
            if twice {
                return Err((start, "another field"));
            }
            if !self.takes(",") {
                self.wants("}")?;
                break;
            }
        }
        self.skip_space();
        let end = self.at;
        if !self.rest().is_empty() {
            return Err((end, "the end of the header"));
        }
        let fortran_order = order.ok_or((end, "a field `fortran_order`"))?;
        let shape = shape.ok_or((end, "a field `shape`"))?;
        let descr = descr.ok_or((end, "a field `descr`"))?;
        Ok(Head { descr, fortran_order, shape, data })
    }

    fn quoted(&mut self) -> Read<&'t str> {
        let quote = if self.takes("\"") { '"' } else { '\'' };
        if quote == '\'' {
            self.wants("'")?;
        }
        let rest = self.rest();
        let end = rest.find(quote).ok_or((self.at, "a closing quote"))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn truth(&mut self) -> Read<bool> {
        if self.takes("True") {
            return Ok(true);
        }
        if self.takes("False") { Ok(false) } else { Err((self.at, "True or False")) }
    }

    fn tuple(&mut self) -> Read<Vec<u64>> {
        let mut axes = Vec::new();
        self.wants("(")?;
        while !self.takes(")") {
            axes.push(self.number()?);
            if !self.takes(",") {
                // `(3)` is a number in Python, not a tuple.
                if axes.len() == 1 {
                    return Err((self.at, ","));
                }
                self.wants(")")?;
                break;
            }
        }
        Ok(axes)
    }

    fn number(&mut self) -> Read<u64> {
        self.skip_space();
        let digits = self.rest().bytes().take_while(u8::is_ascii_digit).count();
        let number = self.rest()[..digits].parse().map_err(|_| (self.at, "a number"))?;
        self.at += digits;
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let length = text.len() as u32;
        let length = if version == 1 { &length.to_le_bytes()[..2] } else { &length.to_le_bytes() };
        [MAGIC, &[version, 0][..], length, text.as_bytes()].concat()
    }

    const TEXT: &str = "{'descr': '<c8', 'fortran_order': False, 'shape': (3, 4), }  \n";

    #[test]
    fn every_version_is_read() {
        for (version, data) in [(1, 10), (2, 12), (3, 12)] {
            let head = Head::parse(&file(version, TEXT)).unwrap();
            assert_eq!((&*head.descr, head.fortran_order), ("<c8", false));
            assert_eq!((&head.shape[..], head.data), (&[3, 4][..], data + TEXT.len() as u64));
            assert_eq!(head.extent(8), Ok((head.data, head.data + 96)));
            assert_eq!((head.check("<c8"), head.check("<f4").is_err()), (Ok(()), true));
        }
        let other = "{\"shape\":(7,),\"fortran_order\":True,\"descr\":\"<f4\"}";
        let head = Head::parse(&file(1, other)).unwrap();
        assert_eq!((&head.shape[..], head.fortran_order), (&[7][..], true));
        assert!(head.check("<f4").unwrap_err().contains("fortran_order"));
    }

    #[test]
    fn what_is_wrong_names_its_offset() {
        let says = |bytes: &[u8], what: &str| {
            let why = Head::parse(bytes).unwrap_err();
            assert!(why.contains(what), "{why} should say {what}");
        };
        says(b"RIFF....", "does not begin");
        says(&file(9, TEXT), "version 9 at offset 6");
        says(&file(1, TEXT)[..9], "ends at offset 9");
        says(&file(1, TEXT)[..40], "ends at offset 40");
        says(&file(1, "{'descr': <f4}"), "expected ' at offset 20");
        says(&file(1, "{'descr': '<f4', 'descr': '<f4'}"), "expected another field at offset 27");
        says(&file(1, "{'name': 1}"), "at offset 11");
        says(&file(1, "{'shape': (3)}"), "expected , at offset 22");
        says(&file(1, "{'shape': (3, -1)}"), "expected a number at offset 24");
        says(&file(1, "{'descr': '<f4'}"), "a field `fortran_order`");
        says(&file(1, &format!("{TEXT}x")), "the end of the header");
        let mut broken = file(1, TEXT);
        broken[12] = 0xff;
        says(&broken, "not UTF-8 at offset 12");
        for shape in ["(0, 3)", "(18446744073709551615, 2)"] {
            let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}");
            assert!(Head::parse(&file(1, &text)).unwrap().extent(4).unwrap_err().contains("shape"));
        }
    }

    #[test]
    fn what_is_written_is_read_and_keeps_its_length() {
        for frame in [&[][..], &[5], &[2, 3], &[1 << 40, 2, 3]] {
            let empty = Head::write("<f4", 0, frame).unwrap();
            for frames in [0, 1, 12345, u64::MAX] {
                let bytes = Head::write("<f4", frames, frame).unwrap();
                assert_eq!((bytes.len(), bytes.len() % ALIGN), (empty.len(), 0));
                let head = Head::parse(&bytes).unwrap();
                let axes: Vec<u64> = frame.iter().map(|&axis| axis as u64).collect();
                assert_eq!(head.shape, [&[frames], &axes[..]].concat());
                assert_eq!((head.data, head.check("<f4")), (bytes.len() as u64, Ok(())));
            }
        }
        assert!(Head::write("<f4", 0, &[1; 30000]).is_err());
    }

    #[cfg(not(any(onebuf_shuttle, miri)))]
    #[test]
    fn fuzz_npy() {
        use onebuf_hal::testing::fuzz::{Bound, Form, Target};
        let seeds = [TEXT.as_bytes().to_vec()];
        Target {
            name: "headers of .npy files",
            bound: Bound { per_byte: 32, fixed: 4096 },
            input: &|random, most| {
                let text = Form::Text.changed(random, &seeds, most.min(MOST));
                file(2, &String::from_utf8_lossy(&text))
            },
            parse: &|file| Head::parse(file).is_ok_and(|head| head.extent(8).is_ok()),
        }
        .run();
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Head::parse(&bytes);
            let mut text = file(2, TEXT);
            for (at, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte < 16) {
                let len = text.len();
                text[(at * 7 + 8) % len] ^= byte;
            }
            if let Ok(head) = Head::parse(&text) {
                let _ = head.extent(8);
            }
        }
    }
}
