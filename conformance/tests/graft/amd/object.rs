//! Code objects for tests: file and metadata, built by hand.

/// A value of the metadata.
#[derive(Clone)]
pub enum Part {
    Number(u64),
    Text(String),
    List(Vec<Part>),
    Map(Vec<(&'static str, Part)>),
}

impl From<u64> for Part {
    fn from(number: u64) -> Part {
        Part::Number(number)
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Part {
        Part::Text(text.into())
    }
}

impl Part {
    /// Writes MessagePack, each value in its shortest form.
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Part::Number(small @ 0..0x80) => to.push(*small as u8),
            Part::Number(number) => {
                to.push(0xcd);
                to.extend((*number as u16).to_be_bytes());
            }
            Part::Text(text) => {
                head(to, text.len(), 0xa0, 32, 0xda);
                to.extend(text.as_bytes());
            }
            Part::List(list) => {
                head(to, list.len(), 0x90, 16, 0xdc);
                list.iter().for_each(|part| part.write(to));
            }
            Part::Map(map) => {
                head(to, map.len(), 0x80, 16, 0xde);
                for (key, value) in map {
                    Part::from(*key).write(to);
                    value.write(to);
                }
            }
        }
    }

    /// Sets the entry with that name.
    pub fn with(mut self, name: &'static str, value: impl Into<Part>) -> Part {
        if let Part::Map(map) = &mut self {
            map.retain(|(key, _)| *key != name);
            map.push((name, value.into()));
        }
        self
    }
}

fn head(to: &mut Vec<u8>, len: usize, short: u8, below: usize, long: u8) {
    match len < below {
        true => to.push(short | len as u8),
        false => {
            to.push(long);
            to.extend((len as u16).to_be_bytes());
        }
    }
}

/// An argument of a kernel.
pub fn argument(kind: &str, offset: u64, size: u64) -> Part {
    let map =
        vec![(".offset", offset.into()), (".size", size.into()), (".value_kind", kind.into())];
    Part::Map(map)
}

pub fn buffer(space: &str, offset: u64) -> Part {
    argument("global_buffer", offset, 8).with(".address_space", space)
}

pub fn local(offset: u64, align: u64) -> Part {
    argument("dynamic_shared_pointer", offset, 4)
        .with(".address_space", "local")
        .with(".pointee_align", align)
}

/// A kernel with `bytes` bytes of arguments and `local` bytes of local memory.
pub fn kernel(name: &str, bytes: u64, local: u64, arguments: Vec<Part>) -> Part {
    Part::Map(vec![
        (".name", name.into()),
        (".symbol", format!("{name}.kd").as_str().into()),
        (".args", Part::List(arguments)),
        (".kernarg_segment_size", bytes.into()),
        (".group_segment_fixed_size", local.into()),
        (".language", "OpenCL C".into()),
    ])
}

/// The metadata of an object of that version.
pub fn described(version: u8, target: &str, kernels: Vec<Part>) -> Part {
    let minor = Part::from(u64::from(version) - 3);
    let map = vec![
        ("amdhsa.version", Part::List(vec![1.into(), minor])),
        ("amdhsa.kernels", Part::List(kernels)),
        ("amdhsa.target", format!("amdgcn-amd-amdhsa--{target}").as_str().into()),
    ];
    Part::Map(map)
}

/// The offset of the notes in the file.
pub const NOTES_AT: usize = 64 + 56;

/// The file with this metadata: a header, one segment and one section, both of notes.
pub fn file(version: u8, description: &Part) -> Vec<u8> {
    let mut metadata = Vec::new();
    description.write(&mut metadata);
    let mut note = [7, metadata.len() as u32, 32].map(u32::to_le_bytes).concat();
    note.extend(b"AMDGPU\0\0");
    note.extend(metadata);
    note.resize(note.len().next_multiple_of(4), 0);
    let (len, sections_at) = (note.len() as u64, (NOTES_AT + note.len()) as u64);
    let mut file = vec![0; NOTES_AT];
    file[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 64, version - 2]);
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &[3, 0, 224, 0, 1]);
    put(32, &64u64.to_le_bytes());
    put(40, &sections_at.to_le_bytes());
    put(52, &[64, 0, 56, 0, 1, 0, 64, 0, 2, 0]);
    let segment = [NOTES_AT as u64, NOTES_AT as u64, NOTES_AT as u64, len, len, 4];
    put(64, &[4, 0, 0, 0, 4]);
    put(72, &segment.map(u64::to_le_bytes).concat());
    file.extend(note);
    file.extend([0; 64]);
    let words = [7 << 32, 0, NOTES_AT as u64, NOTES_AT as u64, len, 0, 4, 0];
    file.extend(words.map(u64::to_le_bytes).concat());
    file
}
