//! Reads the instructions of a module that determine how kernels are launched.

use super::types::Types;
use std::collections::HashMap;

const MAGIC: u32 = 0x0723_0203;
/// Magic, version, generator, bound, schema.
const HEADER: usize = 5;

/// The instructions that are read; the driver handles all others.
mod op {
    pub const EXT_INST_IMPORT: u32 = 11;
    pub const EXT_INST: u32 = 12;
    pub const MEMORY_MODEL: u32 = 14;
    pub const ENTRY_POINT: u32 = 15;
    pub const EXECUTION_MODE: u32 = 16;
    pub const CONSTANT: u32 = 43;
    pub const FUNCTION: u32 = 54;
    pub const FUNCTION_PARAMETER: u32 = 55;
    pub const VARIABLE: u32 = 59;
    pub const DECORATE: u32 = 71;
    pub const GROUP_DECORATE: u32 = 74;
}
const PHYSICAL_64: u32 = 2;
/// The storage class of the program's `global` variables.
const CROSS_WORKGROUP: u32 = 5;
const KERNEL_MODEL: u32 = 6;
const LOCAL_SIZE: u32 = 17;
const PACKED: u32 = 10;
const BUILT_IN: u32 = 11;
const WORK_DIM: u32 = 30;
const PARAMETER_ATTRIBUTE: u32 = 38;
const BY_VALUE: u32 = 2;
/// Numbers in OpenCL's extended instruction set.
const PRINTF: u32 = 184;

/// Returns the module's words, which may be in either byte order.
pub(super) fn words(bytes: &[u8]) -> Result<Vec<u32>, String> {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    match words.first() {
        Some(&MAGIC) if rest.is_empty() => Ok(words),
        Some(&word) if rest.is_empty() && word == MAGIC.swap_bytes() => {
            Ok(words.into_iter().map(u32::swap_bytes).collect())
        }
        _ => Err("it is no module".into()),
    }
}

/// The relevant decorations of an id or group; one bit each.
mod mark {
    pub const DIMS: u8 = 1;
    pub const BY_VALUE: u8 = 2;
    pub const PACKED: u8 = 4;
}

/// A function's parameters: their types and ids.
pub(super) type Parameters = Vec<(u32, u32)>;

/// A kernel: its name, its function, and the variables that it and its callees use.
#[derive(Debug)]
pub(super) struct EntryPoint {
    pub name: String,
    pub function: u32,
    uses: Vec<u32>,
}

/// The properties of a module that concern its kernels.
#[derive(Debug, Default)]
pub(super) struct SpirvModule {
    pub kernels: Vec<EntryPoint>,
    pub functions: HashMap<u32, Parameters>,
    pub groups: HashMap<u32, [usize; 3]>,
    pub types: Types,
    /// Whether it has variables in global memory.
    pub has_variables: bool,
    /// Whether it has a variable for the number of dimensions, and whether a kernel declares that it uses one.
    has_dims: bool,
    admitted: bool,
    /// The instruction set that contains `printf`.
    opencl: Option<u32>,
    /// The [`mark`]s of ids and decoration groups. At most one entry for each id in the module, however often groups
    /// are applied.
    marks: HashMap<u32, u8>,
    /// The function that is being read.
    inside: u32,
}

impl SpirvModule {
    /// Reads all instructions; an error names the word.
    pub fn read(words: &[u32]) -> Result<SpirvModule, String> {
        if words.len() < HEADER {
            return Err(format!("a head of {} words where {HEADER} belong", words.len()));
        }
        let mut module = SpirvModule::default();
        let mut at = HEADER;
        while at < words.len() {
            let (code, count) = (words[at] & 0xffff, (words[at] >> 16) as usize);
            let operands = words.get(at + 1..at + count).filter(|_| count > 0);
            let operands = operands.ok_or_else(|| format!("word {at}: it ends inside of this"))?;
            module.note(code, operands).map_err(|why| format!("word {at}: {why}"))?;
            at += count;
        }
        module.settle();
        Ok(module)
    }

    fn note(&mut self, code: u32, operands: &[u32]) -> Result<(), String> {
        match (code, operands) {
            (op::MEMORY_MODEL, [model, ..]) if *model != PHYSICAL_64 => {
                return Err("addresses of other than 64 bits".into());
            }
            (op::EXT_INST_IMPORT, [id, name @ ..]) if text(name) == "OpenCL.std" => {
                self.opencl = Some(*id);
            }
            (op::EXT_INST, [_, _, set, PRINTF, ..]) if self.opencl == Some(*set) => {
                return Err("printf, whose output the runtime would not show".into());
            }
            (op::ENTRY_POINT, [KERNEL_MODEL, function, name @ ..]) => {
                // The name ends with a NUL, inside its last word or in an additional word.
                let has_end = |word: &u32| word.to_le_bytes().contains(&0);
                let letters = name.iter().position(has_end).map_or(name.len(), |at| at + 1);
                let (function, uses) = (*function, name[letters..].to_vec());
                self.kernels.push(EntryPoint { name: text(&name[..letters]), function, uses });
            }
            (op::EXECUTION_MODE, [function, LOCAL_SIZE, x, y, z]) => {
                self.groups.insert(*function, [x, y, z].map(|n| *n as usize));
            }
            (op::CONSTANT, [_, id, value, rest @ ..]) => self.types.constant(*id, *value, rest),
            (op::FUNCTION, [_, id, ..]) => {
                self.functions.insert(*id, Vec::new());
                self.inside = *id;
            }
            (op::FUNCTION_PARAMETER, [kind, id]) => {
                let function = self.functions.get_mut(&self.inside);
                function.ok_or("a parameter of no function")?.push((*kind, *id));
            }
            (op::VARIABLE, [_, _, CROSS_WORKGROUP, ..]) => self.has_variables = true,
            (op::DECORATE, [id, what, more @ ..]) => {
                let mark = match (*what, more.first().copied()) {
                    (BUILT_IN, Some(WORK_DIM)) => mark::DIMS,
                    (PARAMETER_ATTRIBUTE, Some(BY_VALUE)) => mark::BY_VALUE,
                    (PACKED, _) => mark::PACKED,
                    _ => return Ok(()),
                };
                self.mark(*id, mark);
            }
            (op::GROUP_DECORATE, [group, ids @ ..]) => {
                // The group's decorations apply to each id.
                if let Some(marks) = self.marks.get(group).copied() {
                    ids.iter().for_each(|id| self.mark(*id, marks));
                }
            }
            _ => self.types.note(code, operands),
        }
        Ok(())
    }

    fn mark(&mut self, id: u32, marks: u8) {
        *self.marks.entry(id).or_default() |= marks;
    }

    fn is_marked(&self, id: u32, mark: u8) -> bool {
        self.marks.get(&id).is_some_and(|marks| marks & mark != 0)
    }

    /// Whether a parameter is a pointer to a copy of a value (`byval`).
    pub fn is_by_value(&self, parameter: u32) -> bool {
        self.is_marked(parameter, mark::BY_VALUE)
    }

    fn admits_dims(&self, kernel: &EntryPoint) -> bool {
        kernel.uses.iter().any(|id| self.is_marked(*id, mark::DIMS))
    }

    /// Whether a kernel uses the number of dimensions. If the module does but no kernel declares it, each kernel may.
    pub fn asks_dims(&self, kernel: &EntryPoint) -> bool {
        self.admits_dims(kernel) || self.has_dims && !self.admitted
    }

    /// Derives the properties that depend on all instructions: packed types, and uses of the number of dimensions.
    fn settle(&mut self) {
        let packed = self.marks.iter().filter(|(_, marks)| *marks & mark::PACKED != 0);
        packed.for_each(|(id, _)| self.types.pack(*id));
        self.has_dims = self.marks.values().any(|marks| marks & mark::DIMS != 0);
        self.admitted = self.kernels.iter().any(|kernel| self.admits_dims(kernel));
    }
}

/// Returns the NUL-terminated text at the beginning of some words.
fn text(words: &[u32]) -> String {
    let bytes = || words.iter().flat_map(|word| word.to_le_bytes());
    let mut text =
        Vec::with_capacity(bytes().position(|byte| byte == 0).unwrap_or(4 * words.len()));
    text.extend(bytes().take_while(|byte| *byte != 0));
    String::from_utf8_lossy(&text).into_owned()
}
