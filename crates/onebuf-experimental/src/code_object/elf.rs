//! The ELF file around the code: finds the metadata and checks all lengths.

use std::ops::Range;

/// ELF's constants.
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const OS_HSA: u8 = 64;
const SHARED_OBJECT: u16 = 3;
const AMDGPU: u16 = 224;
const SEGMENT_NOTE: u32 = 4;
const SECTION_WITHOUT_BYTES: u32 = 8;
/// The note that describes the kernels.
const METADATA: u32 = 32;
const METADATA_OWNER: &[u8] = b"AMDGPU\0";

/// Sizes of table entries.
const SEGMENT_BYTES: u16 = 56;
const SECTION_BYTES: u16 = 64;

/// An object whose parts are all inside the file.
#[derive(Debug, PartialEq)]
pub(super) struct Object {
    /// Version of the code object: 3, 4 or 5.
    pub version: u8,
    /// The range of the metadata in the file.
    pub metadata: Range<usize>,
}

/// Checks an object and finds its metadata.
pub(super) fn read(file: &[u8]) -> Result<Object, String> {
    let bytes = Bytes(file);
    if !file.starts_with(super::ELF) {
        return Err("it does not begin as an ELF file does".into());
    }
    let kind = [bytes.u8(4)?, bytes.u8(5)?, bytes.u8(7)?];
    if kind != [CLASS_64, LITTLE_ENDIAN, OS_HSA] {
        return Err(format!(
            "class, byte order and system are {kind:?}, not those of HSA on 64 bits"
        ));
    }
    let (form, machine) = (bytes.u16(16)?, bytes.u16(18)?);
    if (form, machine) != (SHARED_OBJECT, AMDGPU) {
        return Err(format!(
            "it is of type {form} for machine {machine}, not a linked object for AMD's GPUs"
        ));
    }
    let version = match bytes.u8(8)? {
        abi @ 1..=3 => abi + 2,
        abi => {
            return Err(format!(
                "its ABI version is {abi}: code objects 3, 4 and 5 are known (1 to 3)"
            ));
        }
    };
    bytes.check_sections()?;
    Ok(Object { version, metadata: bytes.metadata()? })
}

/// An untrusted file.
#[derive(Clone, Copy)]
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn get(self, at: usize, len: usize) -> Result<&'b [u8], String> {
        let range = at.checked_add(len).and_then(|end| self.0.get(at..end));
        range.ok_or_else(|| format!("{len} bytes at {at} are outside of its {}", self.0.len()))
    }

    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], String> {
        let bytes = self.get(at, N)?;
        bytes.try_into().map_err(|_| format!("{N} bytes at {at} are not there"))
    }

    fn u8(self, at: usize) -> Result<u8, String> {
        self.array(at).map(u8::from_le_bytes)
    }

    fn u16(self, at: usize) -> Result<u16, String> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(self, at: usize) -> Result<u32, String> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// An offset or length in the file.
    fn size(self, at: usize) -> Result<usize, String> {
        let size = self.array(at).map(u64::from_le_bytes)?;
        usize::try_from(size).map_err(|_| format!("a length of {size} bytes"))
    }

    /// Returns the offsets of a table's entries, all checked to be inside the file.
    fn table(
        self,
        [at, size, count]: [usize; 3],
        wanted: u16,
    ) -> Result<impl Iterator<Item = usize>, String> {
        let (first, size, count) = (self.size(at)?, self.u16(size)?, usize::from(self.u16(count)?));
        if count > 0 && size != wanted {
            return Err(format!("entries of {size} bytes in a table of {wanted}"));
        }
        let bytes = count * usize::from(wanted);
        self.get(first, bytes)?;
        Ok((first..first + bytes).step_by(usize::from(wanted)))
    }

    /// Checks the sections: drivers determine the file's length by them, so they must be inside it.
    fn check_sections(self) -> Result<(), String> {
        for section in self.table([40, 58, 60], SECTION_BYTES)? {
            if self.u32(section + 4)? != SECTION_WITHOUT_BYTES {
                self.get(self.size(section + 24)?, self.size(section + 32)?)?;
            }
        }
        Ok(())
    }

    /// Returns the range of the one description of the kernels.
    fn metadata(self) -> Result<Range<usize>, String> {
        let (mut found, mut unread) = (None, self.0.len());
        for segment in self.table([32, 54, 56], SEGMENT_BYTES)? {
            let (at, len) = (self.size(segment + 8)?, self.size(segment + 32)?);
            self.get(at, len)?;
            if self.u32(segment)? == SEGMENT_NOTE {
                // Each byte of the file is read once: otherwise a file could name the same notes in every segment.
                let rest = unread.checked_sub(len);
                unread = rest.ok_or("its segments of notes overlap")?;
                self.notes(at..at + len, &mut found)?;
            }
        }
        found.ok_or_else(|| "it has no metadata of the kind that kernels are described by".into())
    }

    /// Reads the notes of one segment; keeps the first description and refuses a second.
    fn notes(self, segment: Range<usize>, found: &mut Option<Range<usize>>) -> Result<(), String> {
        let mut at = segment.start;
        while at < segment.end {
            let [name, len, kind] = [self.u32(at)?, self.u32(at + 4)?, self.u32(at + 8)?];
            let owner = self.get(at + 12, name as usize)?;
            let start = at + 12 + padded(name);
            self.get(start, len as usize)?;
            let metadata = start..start + len as usize;
            if metadata.end > segment.end {
                return Err("a note that is longer than its segment".into());
            }
            if (kind, owner) == (METADATA, METADATA_OWNER) && found.replace(metadata).is_some() {
                return Err("it describes its kernels more than once".into());
            }
            at = start + padded(len);
        }
        Ok(())
    }
}

/// Rounds up to a word: names and contents of notes are padded.
fn padded(len: u32) -> usize {
    (len as usize).next_multiple_of(4)
}
