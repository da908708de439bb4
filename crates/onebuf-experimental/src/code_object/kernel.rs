//! Reads the metadata of kernels, and how they take their arguments.

use super::msgpack::Node;
use onebuf_hal::packing::{Hidden, Packing, Slot};
use std::collections::HashSet;

/// Minimum alignment of local memory: memory of bytes is often used as something wider.
const LEAST_LOCAL_ALIGN: usize = 16;
/// Alignment of the widest type.
const MOST_ALIGN: usize = 128;
const POINTER_BYTES: usize = 8;
/// Size of an address in group memory.
const LOCAL_BYTES: usize = 4;
/// From this version on a kernel gets the number of dimensions as an argument; before, from the packet that HIP's
/// runtime writes.
const TELLS_DIMS: u8 = 5;

/// The prefix of a target's name.
const TRIPLE: &str = "amdgcn-amd-amdhsa-";

/// All fields that a description may have: an unknown field may change the meaning of the others.
const OF_PROGRAM: [&str; 4] =
    ["amdhsa.version", "amdhsa.target", "amdhsa.kernels", "amdhsa.printf"];
const OF_KERNEL: [&str; 24] = [
    ".name",
    ".symbol",
    ".args",
    ".language",
    ".language_version",
    ".reqd_workgroup_size",
    ".workgroup_size_hint",
    ".vec_type_hint",
    ".device_enqueue_symbol",
    ".kernarg_segment_size",
    ".kernarg_segment_align",
    ".group_segment_fixed_size",
    ".private_segment_fixed_size",
    ".wavefront_size",
    ".sgpr_count",
    ".vgpr_count",
    ".agpr_count",
    ".max_flat_workgroup_size",
    ".sgpr_spill_count",
    ".vgpr_spill_count",
    ".kind",
    ".uses_dynamic_stack",
    ".workgroup_processor_mode",
    ".uniform_work_group_size",
];
const OF_ARGUMENT: [&str; 13] = [
    ".name",
    ".type_name",
    ".size",
    ".offset",
    ".value_kind",
    ".pointee_align",
    ".address_space",
    ".access",
    ".actual_access",
    ".is_const",
    ".is_restrict",
    ".is_volatile",
    ".is_pipe",
];

/// Hidden arguments that HIP's runtime fills as OpenCL's does.
const FILLED: [&str; 16] = [
    "hidden_block_count_x",
    "hidden_block_count_y",
    "hidden_block_count_z",
    "hidden_group_size_x",
    "hidden_group_size_y",
    "hidden_group_size_z",
    "hidden_remainder_x",
    "hidden_remainder_y",
    "hidden_remainder_z",
    "hidden_none",
    "hidden_dynamic_lds_size",
    "hidden_private_base",
    "hidden_shared_base",
    "hidden_queue_ptr",
    "hidden_multigrid_sync_arg",
    "hidden_heap_v1",
];

/// A program's description.
pub(super) struct Program<'n, 'b> {
    /// The GPU's target, such as `gfx90a:sramecc+:xnack-`; older versions state it elsewhere.
    pub target: Option<&'b str>,
    pub kernels: Vec<Kernel<'n, 'b>>,
}

/// One kernel.
pub(super) struct Kernel<'n, 'b> {
    pub packing: Packing,
    /// Arguments that the launch passes because HIP's runtime would fill them differently.
    pub passed: Vec<&'n Node<'b>>,
}

pub(super) fn read<'n, 'b>(root: &'n Node<'b>, version: u8) -> Result<Program<'n, 'b>, String> {
    if let Some(other) = root.other_than(&OF_PROGRAM) {
        return Err(format!("its metadata have `{other}`, which is not known"));
    }
    let said = root.field("amdhsa.version")?.and_then(Node::list).unwrap_or_default();
    // Two numbers are expected; a third is read only to detect that there are more.
    let said: Vec<_> = said.iter().take(3).map(Node::number).collect();
    // The metadata have their own version: 1.0 in code object version 3, 1.1 in 4, 1.2 in 5.
    if said != [Some(1), Some(usize::from(version) - 3)] {
        return Err(format!(
            "its metadata are of version {said:?}, the object of version {version}"
        ));
    }
    let kernels = root.field("amdhsa.kernels")?.and_then(Node::list).unwrap_or_default();
    if kernels.is_empty() {
        return Err("it has no kernels".into());
    }
    let kernels = kernels.iter().map(|kernel| read_kernel(kernel, version));
    let kernels = kernels.collect::<Result<Vec<_>, _>>()?;
    let mut names = HashSet::new();
    // The driver finds kernels by their names alone.
    match kernels.iter().find(|kernel| !names.insert(kernel.packing.name.as_str())) {
        Some(kernel) => Err(format!("it describes kernel `{}` twice", kernel.packing.name)),
        None => Ok(Program { target: target(root)?, kernels }),
    }
}

fn target<'b>(root: &Node<'b>) -> Result<Option<&'b str>, String> {
    let Some(field) = root.field("amdhsa.target")? else { return Ok(None) };
    let name = field.text().unwrap_or_default();
    let chip =
        name.strip_prefix(TRIPLE).and_then(|rest| rest.split_once('-')).map(|(_, chip)| chip);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b":+-".contains(&byte);
    match chip.filter(|chip| chip.starts_with("gfx") && chip.bytes().all(is_word)) {
        Some(chip) => Ok(Some(chip)),
        None => Err(format!("it is for `{name}`, which is no GPU of AMD's under HSA")),
    }
}

fn read_kernel<'n, 'b>(node: &'n Node<'b>, version: u8) -> Result<Kernel<'n, 'b>, String> {
    let name = node.field(".name")?.and_then(Node::text).unwrap_or_default();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_word) {
        return Err(format!("a kernel of the name {name:?}"));
    }
    let described = Described { node, name };
    described.check()?;
    let group = described.group()?;
    let (three_dims, static_local) =
        (version < TELLS_DIMS, described.size(".group_segment_fixed_size")?);
    let name = name.to_owned();
    let packing = Packing {
        name,
        group,
        three_dims,
        static_local,
        takes_offsets: true,
        ..Packing::default()
    };
    described.arguments(Kernel { packing, passed: Vec::new() })
}

/// A kernel's description, and its name for messages.
struct Described<'n, 'b> {
    node: &'n Node<'b>,
    name: &'b str,
}

impl<'n, 'b> Described<'n, 'b> {
    fn wrong<T>(&self, why: impl AsRef<str>) -> Result<T, String> {
        Err(format!("kernel `{}` {}", self.name, why.as_ref()))
    }

    fn size(&self, field: &str) -> Result<usize, String> {
        match self.node.field(field)?.and_then(Node::number) {
            // No launch has more.
            Some(bytes) if bytes <= u32::MAX as usize => Ok(bytes),
            _ => self.wrong(format!("says no `{field}`")),
        }
    }

    fn check(&self) -> Result<(), String> {
        if let Some(other) = self.node.other_than(&OF_KERNEL) {
            return self.wrong(format!("has `{other}`, which is not known"));
        }
        let symbol = self.node.field(".symbol")?.and_then(Node::text);
        if symbol.and_then(|symbol| symbol.strip_suffix(".kd")) != Some(self.name) {
            return self.wrong(format!("has the symbol {symbol:?}, not its name and `.kd`"));
        }
        if self.node.field(".device_enqueue_symbol")?.is_some() {
            return self.wrong("is enqueued by other kernels");
        }
        match self.node.field(".kind")?.map(Node::text) {
            None | Some(Some("normal")) => Ok(()),
            Some(kind) => {
                self.wrong(format!("is of kind {kind:?}, which the runtime runs automatically"))
            }
        }
    }

    /// The group size that the kernel requires.
    fn group(&self) -> Result<Option<[usize; 3]>, String> {
        let Some(field) = self.node.field(".reqd_workgroup_size")? else { return Ok(None) };
        let sizes =
            field.list().and_then(|list| list.iter().map(Node::number).collect::<Option<Vec<_>>>());
        match sizes.and_then(|sizes| <[usize; 3]>::try_from(sizes).ok()) {
            Some(group) => Ok(Some(group)),
            None => self.wrong("requires an invalid group size"),
        }
    }

    fn arguments(&self, mut kernel: Kernel<'n, 'b>) -> Result<Kernel<'n, 'b>, String> {
        let list = self.node.field(".args")?.map_or(Some(&[][..]), Node::list);
        let Some(list) = list else { return self.wrong("has arguments that are no list") };
        let (bytes, mut end, mut hidden) = (self.size(".kernarg_segment_size")?, 0, false);
        for (index, node) in list.iter().enumerate() {
            let argument = Argument::read(self, index, node)?;
            if argument.offset < end || argument.end() > bytes {
                return argument.wrong("does not lie behind the one before and inside of them all");
            }
            end = argument.end();
            if hidden && !argument.is_hidden() {
                return argument.wrong("comes behind those that OpenCL hides");
            }
            hidden = argument.is_hidden();
            argument.note(&mut kernel)?;
        }
        Ok(kernel)
    }
}

/// One argument as described.
struct Argument<'k, 'n, 'b> {
    kernel: &'k Described<'n, 'b>,
    node: &'n Node<'b>,
    index: usize,
    kind: &'b str,
    offset: usize,
    bytes: usize,
}

impl<'k, 'n, 'b> Argument<'k, 'n, 'b> {
    fn read(
        kernel: &'k Described<'n, 'b>,
        index: usize,
        node: &'n Node<'b>,
    ) -> Result<Self, String> {
        if let Some(other) = node.other_than(&OF_ARGUMENT) {
            return kernel
                .wrong(format!("has `{other}` in its argument {index}, which is not known"));
        }
        let number = |field| Ok::<_, String>(node.field(field)?.and_then(Node::number));
        let kind = node.field(".value_kind")?.and_then(Node::text).unwrap_or_default();
        let small = |number: &usize| *number <= u32::MAX as usize;
        let place = [number(".offset")?.filter(small), number(".size")?.filter(small)];
        match place {
            [Some(offset), Some(bytes @ 1..)] => {
                Ok(Self { kernel, node, index, kind, offset, bytes })
            }
            _ => kernel.wrong(format!("says neither place nor size of its argument {index}")),
        }
    }

    fn end(&self) -> usize {
        self.offset.saturating_add(self.bytes)
    }

    fn is_hidden(&self) -> bool {
        self.kind.starts_with("hidden_")
    }

    fn wrong<T>(&self, why: impl AsRef<str>) -> Result<T, String> {
        let name = self.node.field(".name")?.and_then(Node::text);
        let name = name.map_or(String::new(), |name| format!(" `{name}`"));
        self.kernel.wrong(format!("has argument {}{name}, which {}", self.index, why.as_ref()))
    }

    /// Records what a launch must do for the argument.
    fn note(&self, kernel: &mut Kernel<'n, 'b>) -> Result<(), String> {
        let Packing { slots, hidden, .. } = &mut kernel.packing;
        match (self.kind, self.bytes) {
            ("by_value", bytes) => slots.push(Slot::Value(bytes)),
            ("global_buffer", POINTER_BYTES) => slots.push(self.memory()?),
            ("dynamic_shared_pointer", LOCAL_BYTES) => {
                slots.push(self.local()?);
                kernel.passed.push(self.node);
            }
            ("hidden_global_offset_x" | "hidden_global_offset_y" | "hidden_global_offset_z", 8) => {
                let dimension = usize::from(self.kind.as_bytes()[self.kind.len() - 1] - b'x');
                hidden.push(Hidden::Offset(dimension));
                kernel.passed.push(self.node);
            }
            ("hidden_grid_dims", 2) => {
                hidden.push(Hidden::Dims);
                kernel.passed.push(self.node);
            }
            (kind, _) if FILLED.contains(&kind) => {}
            _ => return self.refuse(),
        }
        Ok(())
    }

    fn memory(&self) -> Result<Slot, String> {
        match self.node.field(".address_space")?.and_then(Node::text) {
            Some("global" | "constant") => Ok(Slot::Memory),
            space => self.wrong(format!("points to memory of the kind {space:?}")),
        }
    }

    fn local(&self) -> Result<Slot, String> {
        match self.node.field(".pointee_align")?.and_then(Node::number) {
            Some(align) if align.is_power_of_two() && align <= MOST_ALIGN => {
                Ok(Slot::Local(align.max(LEAST_LOCAL_ALIGN)))
            }
            align => self.wrong(format!("is local memory aligned to {align:?} bytes")),
        }
    }

    #[cold]
    fn refuse<T>(&self) -> Result<T, String> {
        match self.kind {
            "image" | "sampler" => self.wrong("is an image or a sampler: those are not grafted"),
            "pipe" => self.wrong("is a pipe: those are not grafted"),
            "queue" | "hidden_default_queue" | "hidden_completion_action" => {
                self.wrong(format!("(`{}`) is for kernels that enqueue others", self.kind))
            }
            "hidden_printf_buffer" => self.wrong("is for `printf`, which is not grafted"),
            "hidden_hostcall_buffer" => {
                self.wrong("is for calls of the host, which are not grafted")
            }
            kind => self.wrong(format!("is `{kind}` of {} bytes, which is not known", self.bytes)),
        }
    }
}
