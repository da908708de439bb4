//! A module's instructions, as far as they tell how kernels are launched.

use super::types::Types;
use std::collections::{HashMap, HashSet};

const MAGIC: u32 = 0x0723_0203;
/// Magic, version, generator, bound, schema.
const HEADER: usize = 5;
/// Groups of groups could say more than there is memory for.
const MOST_DECORATIONS: usize = 1 << 16;

/// The instructions that are looked at; the driver sees to all others.
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
/// Where `global` variables of the program are.
const CROSS_WORKGROUP: u32 = 5;
const KERNEL_MODEL: u32 = 6;
const LOCAL_SIZE: u32 = 17;
const PACKED: u32 = 10;
const BUILT_IN: u32 = 11;
const WORK_DIM: u32 = 30;
const PARAMETER_ATTRIBUTE: u32 = 38;
const BY_VALUE: u32 = 2;
/// Of the instructions of OpenCL's own.
const PRINTF: u32 = 184;

/// The module's words, whichever byte order it is in.
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

/// A function's parameters: their types and ids.
pub(super) type Parameters = Vec<(u32, u32)>;

/// A kernel: its name, its function, and the variables that it and what it calls use.
#[derive(Debug)]
pub(super) struct Entry {
    pub name: String,
    pub function: u32,
    uses: Vec<u32>,
}

/// What a module says of its kernels.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub kernels: Vec<Entry>,
    pub functions: HashMap<u32, Parameters>,
    pub groups: HashMap<u32, [usize; 3]>,
    pub types: Types,
    /// Parameters that are pointers to a copy of a value.
    pub by_value: HashSet<u32>,
    /// Whether it has variables of its own in global memory.
    pub has_variables: bool,
    /// The variables that are the number of dimensions.
    dims: HashSet<u32>,
    /// The set that `printf` belongs to.
    opencl: Option<u32>,
    /// Of ids and of groups of decorations.
    decorated: Vec<(u32, u32, Option<u32>)>,
    /// The function that is being read.
    inside: u32,
}

impl Module {
    /// Reads all instructions; an error says at which word.
    pub fn read(words: &[u32]) -> Result<Module, String> {
        if words.len() < HEADER {
            return Err(format!("a head of {} words where {HEADER} belong", words.len()));
        }
        let mut module = Module::default();
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
                // The name ends with a zero, in the middle of a word or in one of its own.
                let (function, letters) = (*function, text(name).len() / 4 + 1);
                let uses = name.get(letters..).unwrap_or_default().to_vec();
                self.kernels.push(Entry { name: text(name), function, uses });
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
                self.decorated.push((*id, *what, more.first().copied()));
            }
            (op::GROUP_DECORATE, [group, ids @ ..]) => self.decorate_all(*group, ids)?,
            _ => self.types.note(code, operands),
        }
        Ok(())
    }

    /// What was said of the group is said of each.
    fn decorate_all(&mut self, group: u32, ids: &[u32]) -> Result<(), String> {
        let said: Vec<_> = self.decorated.iter().filter(|(id, ..)| *id == group).copied().collect();
        if said.len().saturating_mul(ids.len()) > MOST_DECORATIONS {
            return Err("more decorations than any compiler writes".into());
        }
        let all = ids.iter().flat_map(|id| said.iter().map(|(_, what, more)| (*id, *what, *more)));
        self.decorated.extend(all.collect::<Vec<_>>());
        Ok(())
    }

    /// Whether a kernel asks for the number of dimensions. Where one does and none admits it, each may.
    pub fn asks_dims(&self, kernel: &Entry) -> bool {
        let admits = |kernel: &Entry| kernel.uses.iter().any(|id| self.dims.contains(id));
        admits(kernel) || !self.dims.is_empty() && !self.kernels.iter().any(admits)
    }

    fn settle(&mut self) {
        for (id, what, more) in std::mem::take(&mut self.decorated) {
            match (what, more) {
                (BUILT_IN, Some(WORK_DIM)) => _ = self.dims.insert(id),
                (PARAMETER_ATTRIBUTE, Some(BY_VALUE)) => _ = self.by_value.insert(id),
                (PACKED, _) => self.types.pack(id),
                _ => {}
            }
        }
    }
}

/// The text at the beginning of some words, which ends with a zero.
fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
