//! Parses a SPIR-V module: its entry points, their group sizes, its bindings.
//!
//! Drivers trust the module, so it is checked here first: every instruction is inside the module, and it contains
//! everything that is needed to launch a kernel.

use std::collections::{BTreeMap, BTreeSet};

const MAGIC: u32 = 0x0723_0203;
const HEADER_WORDS: usize = 5;
/// The largest id bound of a module, by the specification.
const MOST_IDS: u32 = 0x003F_FFFF;

const OP_MEMORY_MODEL: u16 = 14;
const OP_ENTRY_POINT: u16 = 15;
const OP_EXECUTION_MODE: u16 = 16;
const OP_CAPABILITY: u16 = 17;
const OP_TYPE_POINTER: u16 = 32;
const OP_CONSTANT: u16 = 43;
const OP_CONSTANT_COMPOSITE: u16 = 44;
const OP_SPEC_CONSTANT: u16 = 50;
const OP_SPEC_CONSTANT_COMPOSITE: u16 = 51;
const OP_FUNCTION_END: u16 = 56;
const OP_VARIABLE: u16 = 59;
const OP_DECORATE: u16 = 71;

const MODEL_COMPUTE: u32 = 5;
const MODE_LOCAL_SIZE: u32 = 17;
const CAPABILITY_SHADER: u32 = 1;
const CAPABILITY_KERNEL: u32 = 6;
const CLASS_UNIFORM: u32 = 2;
const CLASS_STORAGE_BUFFER: u32 = 12;
const DECORATION_BUFFER_BLOCK: u32 = 3;
const DECORATION_BUILT_IN: u32 = 11;
const DECORATION_BINDING: u32 = 33;
const DECORATION_SET: u32 = 34;
const BUILT_IN_GROUP_SIZE: u32 = 25;

/// The kind of argument of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// A buffer.
    Storage,
    /// A block of values.
    Values,
    /// An image or another kind of resource.
    Other,
}

/// A compute shader of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: String,
    /// Work-items of a group in each dimension.
    pub group: [u32; 3],
}

/// A parsed and checked module.
#[derive(Debug)]
pub(super) struct Module {
    pub words: Vec<u32>,
    pub entries: Vec<Entry>,
    /// The kind of each binding of set 0.
    pub bindings: BTreeMap<u32, Takes>,
    /// Whether other sets have bindings.
    pub other_sets: bool,
}

impl Module {
    /// Parses bytes in either byte order; `newest` is the newest minor version that the device accepts.
    pub fn of_bytes(bytes: &[u8], newest: u32) -> Result<Module, String> {
        let words = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let mut words: Vec<u32> = words.collect();
        if words.first() == Some(&MAGIC.swap_bytes()) {
            words.iter_mut().for_each(|word| *word = word.swap_bytes());
        }
        Module::new(words, newest)
    }

    pub fn new(words: Vec<u32>, newest: u32) -> Result<Module, String> {
        let [MAGIC, version, _, bound, 0] = words[..HEADER_WORDS.min(words.len())] else {
            return Err("it does not have the header of a SPIR-V module".to_owned());
        };
        if version >> 16 != 1 || version >> 8 & 0xff > newest {
            let (major, minor) = (version >> 16, version >> 8 & 0xff);
            return Err(format!("SPIR-V {major}.{minor}, and the device takes up to 1.{newest}"));
        }
        if bound == 0 || bound > MOST_IDS {
            return Err(format!("invalid id bound {bound}"));
        }
        let mut walk = Walk::default();
        let last = walk.all(&words[HEADER_WORDS..], bound)?;
        walk.check(last)?;
        let (entries, (bindings, other_sets)) = (walk.entries(), walk.bindings());
        Ok(Module { words, entries, bindings, other_sets })
    }

    /// The entry point of that name, or the only one if its name is `main`.
    pub fn entry(&self, kernel: &str) -> Option<&Entry> {
        let named = self.entries.iter().find(|entry| entry.name == kernel);
        named.or(match &self.entries[..] {
            [only] if only.name == super::glsl::MAIN => Some(only),
            _ => None,
        })
    }
}

/// The parts of a module that matter here, by id.
#[derive(Default)]
struct Walk {
    capabilities: BTreeSet<u32>,
    memory_models: usize,
    entries: Vec<(u32, String)>,
    sizes: BTreeMap<u32, [u32; 3]>,
    /// The composite that is the group size of every entry point.
    group_size: Option<u32>,
    numbers: BTreeMap<u32, u32>,
    composites: BTreeMap<u32, [u32; 3]>,
    /// The type that a pointer type points to.
    pointers: BTreeMap<u32, u32>,
    /// Pointer type and storage class of a variable.
    variables: BTreeMap<u32, (u32, u32)>,
    places: BTreeMap<u32, u32>,
    sets: BTreeMap<u32, u32>,
    buffer_blocks: BTreeSet<u32>,
}

impl Walk {
    /// Processes every instruction, and returns the opcode of the last.
    fn all(&mut self, mut words: &[u32], bound: u32) -> Result<u16, String> {
        let (mut last, all) = (0, words.len());
        while let Some(first) = words.first() {
            let (len, code) = ((first >> 16) as usize, *first as u16);
            if len == 0 || len > words.len() {
                let at = all - words.len() + HEADER_WORDS;
                return Err(format!("the instruction at word {at} has {len} words"));
            }
            self.one(code, &words[1..len], bound)?;
            (last, words) = (code, &words[len..]);
        }
        Ok(last)
    }

    fn one(&mut self, code: u16, operands: &[u32], bound: u32) -> Result<(), String> {
        let id = match (code, operands) {
            (OP_ENTRY_POINT, [MODEL_COMPUTE, id, name @ ..]) => {
                self.entries.push((*id, literal(name)?));
                *id
            }
            (OP_EXECUTION_MODE, [id, MODE_LOCAL_SIZE, x, y, z]) => {
                self.sizes.insert(*id, [*x, *y, *z]);
                *id
            }
            (OP_CONSTANT | OP_SPEC_CONSTANT, [_, id, value]) => {
                self.numbers.insert(*id, *value);
                *id
            }
            (OP_CONSTANT_COMPOSITE | OP_SPEC_CONSTANT_COMPOSITE, [_, id, x, y, z]) => {
                self.composites.insert(*id, [*x, *y, *z]);
                *id
            }
            (OP_TYPE_POINTER, [id, _, to]) => {
                self.pointers.insert(*id, *to);
                *id
            }
            (OP_VARIABLE, [kind, id, class, ..]) => {
                self.variables.insert(*id, (*kind, *class));
                *id
            }
            (OP_DECORATE, [id, what, more @ ..]) => {
                self.decorate(*id, *what, more);
                *id
            }
            _ => {
                self.plain(code, operands);
                return Ok(());
            }
        };
        match id < bound {
            true => Ok(()),
            false => Err(format!("an instruction of kind {code} names id {id} of {bound}")),
        }
    }

    /// Processes an instruction that has no result or target id.
    fn plain(&mut self, code: u16, operands: &[u32]) {
        match (code, operands) {
            (OP_CAPABILITY, [one]) => drop(self.capabilities.insert(*one)),
            (OP_MEMORY_MODEL, [_, _]) => self.memory_models += 1,
            _ => {}
        }
    }

    fn decorate(&mut self, id: u32, what: u32, more: &[u32]) {
        match (what, more) {
            (DECORATION_BINDING, [place]) => drop(self.places.insert(id, *place)),
            (DECORATION_SET, [set]) => drop(self.sets.insert(id, *set)),
            (DECORATION_BUFFER_BLOCK, _) => drop(self.buffer_blocks.insert(id)),
            (DECORATION_BUILT_IN, [BUILT_IN_GROUP_SIZE]) => self.group_size = Some(id),
            _ => {}
        }
    }

    fn check(&self, last: u16) -> Result<(), String> {
        if self.capabilities.contains(&CAPABILITY_KERNEL) {
            return Err("it is a module for OpenCL: compile it for Vulkan".to_owned());
        }
        if !self.capabilities.contains(&CAPABILITY_SHADER) || self.memory_models != 1 {
            return Err("it is not a module of shaders".to_owned());
        }
        if self.entries.is_empty() {
            return Err("it has no compute shader".to_owned());
        }
        if last != OP_FUNCTION_END {
            return Err("it ends in the middle of a function, or has none".to_owned());
        }
        match self.entries.iter().find(|(id, _)| self.group(*id).is_none_or(|n| n.contains(&0))) {
            None => Ok(()),
            Some((_, name)) => Err(format!("`{name}` does not say how large its groups are")),
        }
    }

    fn group(&self, entry: u32) -> Option<[u32; 3]> {
        let built_in = self.group_size.and_then(|id| self.composites.get(&id));
        let number = |id: &u32| self.numbers.get(id).copied();
        match built_in {
            Some([x, y, z]) => Some([number(x)?, number(y)?, number(z)?]),
            None => self.sizes.get(&entry).copied(),
        }
    }

    fn entries(&self) -> Vec<Entry> {
        let entry = |(id, name): &(u32, String)| Entry {
            name: name.clone(),
            group: self.group(*id).unwrap_or([1; 3]),
        };
        self.entries.iter().map(entry).collect()
    }

    /// The bindings of set 0, and whether other sets have any.
    fn bindings(&self) -> (BTreeMap<u32, Takes>, bool) {
        let mut found = BTreeMap::new();
        for (id, (kind, class)) in &self.variables {
            let Some(place) = self.places.get(id) else { continue };
            if self.sets.get(id).is_none_or(|set| *set == 0) {
                found.insert(*place, self.takes(*kind, *class));
            }
        }
        let is_ours = |id: &u32| self.places.contains_key(id) && self.variables.contains_key(id);
        (found, self.sets.iter().any(|(id, set)| *set != 0 && is_ours(id)))
    }

    fn takes(&self, kind: u32, class: u32) -> Takes {
        let block = self.pointers.get(&kind).is_some_and(|to| self.buffer_blocks.contains(to));
        match class {
            CLASS_STORAGE_BUFFER => Takes::Storage,
            CLASS_UNIFORM if block => Takes::Storage,
            CLASS_UNIFORM => Takes::Values,
            _ => Takes::Other,
        }
    }
}

/// Parses a zero-terminated text, four bytes to a word.
fn literal(words: &[u32]) -> Result<String, String> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = end.and_then(|end| std::str::from_utf8(&bytes[..end]).ok());
    text.map(str::to_owned).ok_or_else(|| "an entry's name has no end".to_owned())
}

#[cfg(test)]
#[path = "tests/spirv.rs"]
mod tests;

#[cfg(all(test, not(onebuf_shuttle), not(miri)))]
#[path = "tests/bounds_tests.rs"]
mod bounds_tests;
