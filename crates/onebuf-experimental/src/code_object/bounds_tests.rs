//! Objects that try to exhaust memory.

use super::{msgpack, rewrite};
use onebuf_hal::testing::{
    fuzz::{Bound, Random, Target},
    meter::measure,
};

/// The bound that `docs/graft.md` promises.
const BOUND: Bound = Bound { per_byte: 64, fixed: 1 << 20 };
const HEAD: usize = 64;
const SEGMENT: usize = 56;

/// A note of a type, with AMD's owner name.
fn note(kind: u32, contents: &[u8]) -> Vec<u8> {
    let mut note = [7, contents.len() as u32, kind].map(u32::to_le_bytes).concat();
    note.extend(b"AMDGPU\0\0");
    note.extend(contents);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// An object with these note segments: offset and length of each in the bytes after the table.
fn object(segments: &[(usize, usize)], bytes: &[u8]) -> Vec<u8> {
    let behind = HEAD + SEGMENT * segments.len();
    let mut file = vec![0; HEAD];
    file[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 64, 3]);
    file[16..20].copy_from_slice(&[3, 0, 224, 0]);
    file[32..40].copy_from_slice(&(HEAD as u64).to_le_bytes());
    file[54..56].copy_from_slice(&(SEGMENT as u16).to_le_bytes());
    file[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    for (at, len) in segments {
        let (at, len) = ((behind + at) as u64, *len as u64);
        file.extend([4, at, at, at, len, len, 4].map(u64::to_le_bytes).concat());
    }
    file.extend(bytes);
    file
}

#[track_caller]
fn refused(object: &[u8], why: &str) {
    let (answer, taken) = measure(|| rewrite(object));
    BOUND.check("a code object", object, taken);
    let said = answer.unwrap_err();
    assert!(said.contains(why), "{said}");
}

/// Every segment names the same notes.
#[test]
fn notes_are_read_once_however_many_segments_name_them() {
    for (kind, why) in [(32, "more than once"), (1, "overlap")] {
        let notes = note(kind, &[]).repeat(19_000);
        let object = object(&vec![(0, notes.len()); 6_500], &notes);
        assert!((720 << 10..760 << 10).contains(&object.len()), "{}", object.len());
        refused(&object, why);
    }
}

/// Deeply nested lists, and lists that announce more than follows.
#[test]
fn metadata_take_no_more_than_their_bytes() {
    let mut nested = vec![0xdd, 0, 1, 0, 0];
    nested.extend([0x91, 0].repeat(1 << 16));
    let mut deep = vec![0xdd, 0, 0, 0x80, 0];
    deep.extend([0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x91, 0x90].repeat(1 << 15));
    let mut announced = [0xdd, 0, 1, 0, 0].repeat(16);
    announced.resize(1 << 16, 0);
    for document in [nested, deep, announced] {
        let (_, taken) = measure(|| msgpack::read(&document).is_ok());
        Bound { per_byte: 40, fixed: 4096 }.check("MessagePack", &document, taken);
        let notes = note(32, &document);
        let object = object(&[(0, notes.len())], &notes);
        let (_, taken) = measure(|| rewrite(&object).is_ok());
        BOUND.check("a code object", &object, taken);
    }
    assert!(msgpack::read(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0]).unwrap_err().contains("end before"));
}

/// A field's name, and what writes its value.
type Field<'f, W> = (&'f str, &'f dyn Fn(&mut W));

/// Writes MessagePack that often resembles a description of kernels.
struct Writer<'r> {
    random: &'r mut Random,
    out: Vec<u8>,
    most: usize,
}

impl Writer<'_> {
    fn text(&mut self, text: &str) {
        self.out.extend([0xda]);
        self.out.extend((text.len() as u16).to_be_bytes());
        self.out.extend(text.as_bytes());
    }

    fn head(&mut self, kind: u8, len: usize) {
        // Sometimes a wrong length.
        let len = if self.random.below(400) == 0 { self.random.number() as usize } else { len };
        self.out.push(kind);
        self.out.extend((len as u32).to_be_bytes());
    }

    /// The number of following values: few, or as many as there is room for.
    fn many(&mut self, each: usize) -> usize {
        let room = self.most.saturating_sub(self.out.len()) / each;
        if self.random.below(8) == 0 {
            self.random.below(room.max(1))
        } else {
            self.random.below(6)
        }
    }

    fn map(&mut self, fields: &[Field<'_, Self>]) {
        let twice = self.random.below(200) == 0;
        let other = self.random.below(200) == 0;
        self.head(0xdf, fields.len() + usize::from(twice) + usize::from(other));
        for (name, value) in fields.iter().chain(fields.first().filter(|_| twice)) {
            self.text(name);
            value(self);
        }
        if other {
            self.text("amdhsa.printf");
            self.anything(0);
        }
    }

    fn anything(&mut self, level: usize) {
        match self.random.below(6) {
            0 => self.text("hidden_none"),
            1 => self.out.push(0xc3),
            2 if level < 20 => {
                let len = self.many(4);
                self.head(0xdd, len);
                (0..len).for_each(|_| self.anything(level + 8));
            }
            _ => self.out.push(self.random.below(128) as u8),
        }
    }

    fn argument(&mut self, index: usize) {
        let kinds = [
            ("by_value", 12),
            ("global_buffer", 8),
            ("dynamic_shared_pointer", 4),
            ("hidden_global_offset_x", 8),
            ("hidden_none", 8),
        ];
        let likely = if self.random.below(9) == 0 { kinds.len() } else { 2 };
        let (kind, bytes) = *self.random.of(&kinds[..likely]);
        self.map(&[
            (".offset", &|w| {
                w.out.extend([&[0xce], &(16 * index as u32).to_be_bytes()[..]].concat())
            }),
            (".size", &|w| w.out.push(bytes)),
            (".value_kind", &|w| w.text(kind)),
            (".address_space", &|w| w.text("global")),
            (".pointee_align", &|w| w.out.push(16)),
        ]);
    }

    fn kernel(&mut self, number: usize) {
        let name = format!("k{number}");
        self.map(&[
            (".name", &|w| w.text(&name)),
            (".symbol", &|w| w.text(&format!("{name}.kd"))),
            (".kernarg_segment_size", &|w| w.out.extend([0xce, 0x7f, 0, 0, 0])),
            (".group_segment_fixed_size", &|w| w.out.push(0)),
            (".args", &|w| {
                let len = w.many(90);
                w.head(0xdd, len);
                (0..len).for_each(|index| w.argument(index));
            }),
        ]);
    }

    fn program(&mut self) {
        self.map(&[
            ("amdhsa.version", &|w| w.out.extend([0x92, 1, 2])),
            ("amdhsa.target", &|w| w.text("amdgcn-amd-amdhsa--gfx90a")),
            ("amdhsa.kernels", &|w| {
                let len = w.many(150).max(1);
                w.head(0xdd, len);
                (0..len).for_each(|number| w.kernel(number));
            }),
        ]);
    }
}

fn any_object(random: &mut Random, most: usize) -> Vec<u8> {
    let mut writer = Writer { random, out: Vec::new(), most: most * 3 / 4 };
    writer.program();
    let metadata = writer.out;
    let mut notes = [note(1, &[0; 16]), note(32, &metadata), note(1, &[])].concat();
    if random.below(3) == 0 {
        let kind = *random.of(&[1, 32]);
        notes.extend(note(kind, &[]).repeat(random.below(most / 40)));
    }
    let others = if random.below(2) == 0 { random.below(most / SEGMENT / 2) } else { 0 };
    let mut segments = vec![(0, notes.len())];
    let rare = *random.of(&[1, 30, usize::MAX, usize::MAX]);
    segments.extend((0..others).map(|_| match random.below(rare) {
        0 => (0, notes.len()),
        _ => (random.below(2) * 4, 0),
    }));
    let mut object = object(&segments, &notes);
    for _ in 0..random.below(3) {
        let at = random.below(object.len());
        object[at] = random.number() as u8;
    }
    object
}

#[test]
fn fuzz_code_objects() {
    let (input, parse) = (&any_object, &|object: &[u8]| rewrite(object).is_ok());
    Target { name: "code objects", bound: BOUND, input, parse }.run();
}
