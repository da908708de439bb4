//! Determines what must change in a PTX text, and changes it. All other text stays as it was.

use super::{
    Refusal, constants,
    edits::Edits,
    lex::{Token, tokens},
    parse::{Function, Param, Pointer, PtxModule, Statement, Variable, parse},
    registers::Registers,
};
use onebuf_hal::packing::{self, Hidden, Packing, Slot};
use std::collections::HashSet;

/// Prefix of names that the rewriter adds.
const OURS: &str = "onebuf_";
/// Name of the group's dynamic memory. Every OpenCL type is aligned to 128 bytes or less.
const LOCAL: &str = ".extern .shared .align 128 .b8 onebuf_local[];";
/// Minimum alignment of local memory: memory of bytes is often used as something wider.
const LEAST_LOCAL_ALIGN: usize = 16;
/// Alignment of the widest type.
const MOST_ALIGN: usize = 128;

/// Rewrites a whole module.
pub(super) fn rewrite(text: &str) -> Result<String, Refusal> {
    let text = text.trim_end_matches('\0');
    let tokens = tokens(text)?;
    let module = parse(&tokens)?;
    let mut edits = Edits::default();
    target(&module, &mut edits)?;
    for [first, last] in &module.notes {
        edits.replace(first, last, "");
    }
    module.variables.iter().try_for_each(check_variable)?;
    check_definitions(&module)?;
    if module.functions.iter().any(takes_constant_memory) {
        constants::to_global(&module, &mut edits)?;
    }
    let mut offsets_inside = false;
    for function in module.functions.iter().filter(|function| !function.is_entry) {
        offsets_inside |= plain(function, &mut edits)?;
    }
    let mut kernels = Vec::new();
    for function in module.functions.iter().filter(|function| function.is_entry) {
        kernels.push(KernelRewriter::new(function, &mut edits).rewrite(offsets_inside)?);
    }
    if kernels.iter().any(|kernel| kernel.slots.iter().any(|s| matches!(s, Slot::Local(_)))) {
        edits.insert_behind(&module.address_size, format!("\n\n{LOCAL}"));
    }
    match kernels.is_empty() {
        true => Err(Refusal::at(&module.address_size, "no kernels")),
        false => Ok(packing::write(&kernels) + &edits.apply(text)),
    }
}

/// Checks that every declared function is also defined, which `printf` is not.
fn check_definitions(module: &PtxModule<'_>) -> Result<(), Refusal> {
    let functions = &module.functions;
    let defined: HashSet<&str> =
        functions.iter().filter(|f| f.body.is_some()).map(|f| f.name.text).collect();
    match functions.iter().find(|function| !defined.contains(function.name.text)) {
        None => Ok(()),
        Some(Function { name, .. }) if name.is("vprintf") => {
            Err(Refusal::at(name, "`printf` is not grafted"))
        }
        Some(Function { name, .. }) => {
            Err(Refusal::at(name, format!("`{}`, which is not in the program", name.text)))
        }
    }
}

fn space_of<'p>(param: &Param<'p>) -> Option<&'p str> {
    param.pointer.as_ref()?.space.map(|space| space.text)
}

fn takes_constant_memory(function: &Function<'_>) -> bool {
    function.params.iter().any(|param| space_of(param) == Some(".const"))
}

/// Removes OpenCL's texture mode, which CUDA does not use.
fn target(module: &PtxModule<'_>, edits: &mut Edits) -> Result<(), Refusal> {
    let mut before = None;
    for word in module.target.iter().filter(|word| !word.is(",")) {
        match (word.text, before) {
            ("texmode_independent", Some(before)) => {
                edits.cut(Token::end(before), word.end());
            }
            ("debug", _) => {}
            (chip, None) if chip.starts_with("sm_") => {}
            (other, _) => return Err(Refusal::at(word, format!("a target `{other}`"))),
        }
        before = Some(word);
    }
    match module.address_size.is("64") {
        true => Ok(()),
        false => Err(Refusal::at(&module.address_size, "addresses that are not of 64 bits")),
    }
}

/// Checks a module variable: numbers mean the same in both APIs; textures and similar objects do not.
fn check_variable(variable: &Variable<'_>) -> Result<(), Refusal> {
    let known = |word: &str| {
        let number = word.strip_prefix('.').is_some_and(|rest| {
            let bits = rest.trim_start_matches(['b', 'u', 's', 'f']);
            rest.len() == bits.len() + 1 && ["8", "16", "32", "64"].contains(&bits)
        });
        number || [".visible", ".weak", ".global", ".const", ".shared", ".align"].contains(&word)
    };
    for word in variable.words.iter().filter(|word| word.text.starts_with(['.', '%'])) {
        if !known(word.text) {
            return Err(Refusal::at(word, format!("a variable that is `{}`", word.text)));
        }
    }
    variable.words.iter().try_for_each(check_name)
}

fn check_name(word: &Token<'_>) -> Result<(), Refusal> {
    match word.text.trim_start_matches(['.', '%', '$']).starts_with(OURS) {
        true => Err(Refusal::at(word, format!("the name `{}`, which grafting uses", word.text))),
        false => Ok(()),
    }
}

/// Rewrites a function that kernels call. Returns whether it uses the global offset, which is then zero.
fn plain(function: &Function<'_>, edits: &mut Edits) -> Result<bool, Refusal> {
    check_name(&function.name)?;
    if let Some(param) = function.params.iter().find(|param| param.pointer.is_some()) {
        return Err(Refusal::at(&param.name, "a function's parameter with `.ptr`"));
    }
    let body = function.body.as_deref().unwrap_or_default();
    let registers = Registers::of(body)?;
    let mut asks = false;
    for statement in body {
        check(statement, &registers)?;
        match EnvRead::of(statement)? {
            Some(EnvRead { what: Told::Always(what), register, .. }) => {
                edits.replace(&register, &register, what);
            }
            Some(EnvRead { what: Told::Hidden(Hidden::Offset(_)), register, .. }) => {
                asks = true;
                edits.replace(&register, &register, "0");
            }
            Some(EnvRead { what: Told::Hidden(Hidden::Dims), register, .. }) => {
                let why = "`get_work_dim` inside a function that was not inlined";
                return Err(Refusal::at(&register, why));
            }
            None => {}
        }
    }
    Ok(asks)
}

/// The replacement for an environment register.
#[derive(Clone, Copy)]
enum Told {
    /// A value that needs no parameter.
    Always(&'static str),
    Hidden(Hidden),
}

/// Returns the meaning of an environment register, derived from what NVIDIA's compiler generates for each index
/// function. OpenCL's driver may split a launch into several; the first three registers and those of groups exist for
/// that. A CUDA launch is never split.
fn meaning(name: &str) -> Option<Told> {
    let number: usize = name.strip_prefix("%envreg")?.parse().ok()?;
    Some(match number {
        0..=2 => Told::Always("0"),
        3..=5 => Told::Hidden(Hidden::Offset(number - 3)),
        6..=8 => Told::Always(["%nctaid.x", "%nctaid.y", "%nctaid.z"][number - 6]),
        9 => Told::Hidden(Hidden::Dims),
        _ => return None,
    })
}

/// `mov.u32 %r1, %envreg3;`, the only form in which compilers read those registers.
struct EnvRead<'t> {
    to: Token<'t>,
    register: Token<'t>,
    what: Told,
}

impl<'t> EnvRead<'t> {
    fn of(statement: &Statement<'t>) -> Result<Option<Self>, Refusal> {
        let is_env = |word: &&Token<'t>| word.text.starts_with("%envreg");
        let Some(register) = statement.words.iter().find(is_env) else { return Ok(None) };
        let Some(what) = meaning(register.text) else {
            return Err(Refusal::at(register, format!("`{}`, which is not known", register.text)));
        };
        match statement.words {
            [mov, to, comma, from]
                if ["mov.u32", "mov.b32"].contains(&mov.text)
                    && comma.is(",")
                    && from == register =>
            {
                Ok(Some(Self { to: *to, register: *register, what }))
            }
            _ => Err(Refusal::at(
                register,
                format!("`{}` is not read by a plain `mov`", register.text),
            )),
        }
    }
}

/// Instructions on images and samplers, and queries of them.
const REFUSED: [&str; 9] =
    ["tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep", "trap_handler"];

/// Checks that a statement means the same in both APIs.
fn check(statement: &Statement<'_>, registers: &Registers<'_>) -> Result<(), Refusal> {
    let words = statement.words;
    words.iter().try_for_each(check_name)?;
    if words[0].is(".reg") {
        return Ok(());
    }
    let guard = words[0].is("@");
    let opcode = words
        .iter()
        .skip(if guard { 1 } else { 0 })
        .find(|word| word.is_word() && !(guard && word.text.starts_with('%')));
    let stem = opcode.and_then(|word| word.text.split('.').next()).unwrap_or_default();
    if let Some(opcode) = opcode.filter(|_| REFUSED.contains(&stem)) {
        return Err(Refusal::at(opcode, format!("`{}`: images are not grafted", opcode.text)));
    }
    let unknown = |word: &&Token<'_>| !registers.knows(word) && !word.text.starts_with("%envreg");
    match words.iter().find(unknown) {
        Some(word) => Err(Refusal::at(word, format!("the register `{}`", word.text))),
        None => Ok(()),
    }
}

/// A kernel while it is rewritten.
struct KernelRewriter<'e, 't> {
    function: &'e Function<'t>,
    edits: &'e mut Edits,
    hidden: Vec<Hidden>,
    /// Parameters of local memory.
    locals: HashSet<&'t str>,
}

impl<'e, 't> KernelRewriter<'e, 't> {
    fn new(function: &'e Function<'t>, edits: &'e mut Edits) -> Self {
        let locals = function.params.iter().filter(|param| space_of(param) == Some(".shared"));
        let locals = locals.map(|param| param.name.text).collect();
        Self { function, edits, hidden: Vec::new(), locals }
    }

    fn rewrite(mut self, offsets_inside: bool) -> Result<Packing, Refusal> {
        let Function { name, params, body, .. } = self.function;
        check_name(name)?;
        let body = body.as_deref().ok_or_else(|| Refusal::at(name, "a kernel without a body"))?;
        let slots = params.iter().map(|param| self.slot(param)).collect::<Result<Vec<_>, _>>()?;
        let registers = Registers::of(body)?;
        for statement in body {
            check(statement, &registers)?;
            self.local(statement)?;
            if let Some(read) = EnvRead::of(statement)? {
                self.told(statement, &read);
            }
        }
        self.declare_hidden()?;
        let calls = body.iter().any(|s| s.words.iter().any(|word| word.text.starts_with("call")));
        Ok(Packing {
            name: name.text.to_owned(),
            slots,
            group: self.group()?,
            takes_offsets: !(calls && offsets_inside),
            hidden: self.hidden,
            ..Packing::default()
        })
    }

    /// Returns the slot of an argument; a parameter of local memory becomes a plain number.
    fn slot(&mut self, param: &Param<'t>) -> Result<Slot, Refusal> {
        check_name(&param.name)?;
        let Some(pointer) = &param.pointer else { return Ok(Slot::Value(param.bytes)) };
        let Pointer { words, space, align } = pointer;
        if param.bytes != 8 {
            return Err(Refusal::at(&param.name, "a pointer that is not of 64 bits"));
        }
        match space.map(|space| space.text) {
            Some(".global") => Ok(Slot::Memory),
            Some(".const") => {
                let first = &words[0];
                let space = words.get(1).unwrap_or(first);
                self.edits.replace(space, space, ".global");
                Ok(Slot::Memory)
            }
            Some(".shared") if align.is_power_of_two() && *align <= MOST_ALIGN => {
                if let [first, .., last] = words {
                    self.edits.replace(first, last, "");
                }
                Ok(Slot::Local(LEAST_LOCAL_ALIGN.max(*align)))
            }
            _ => Err(Refusal::at(&words[0], "a pointer to memory of another kind")),
        }
    }

    /// Rewrites a load of local memory's address: the launch passes only an offset.
    fn local(&mut self, statement: &Statement<'t>) -> Result<(), Refusal> {
        let named = |word: &&Token<'_>| self.locals.contains(word.text);
        let Some(name) = statement.words.iter().find(named) else { return Ok(()) };
        match statement.words {
            [load, to, comma, open, from, close]
                if ["ld.param.u64", "ld.param.b64"].contains(&load.text)
                    && [comma.text, open.text, close.text] == [",", "[", "]"]
                    && from == name =>
            {
                let to = to.text;
                self.edits.insert_behind(
                    statement.end,
                    format!(
                        "\n\t{{ .reg .b64 %onebuf_at; mov.u64 %onebuf_at, onebuf_local; \
                         add.s64 {to}, {to}, %onebuf_at; }}"
                    ),
                );
                Ok(())
            }
            _ => Err(Refusal::at(name, format!("`{}` is not read by a plain load", name.text))),
        }
    }

    fn told(&mut self, statement: &Statement<'t>, read: &EnvRead<'t>) {
        match read.what {
            Told::Always(what) => self.edits.replace(&read.register, &read.register, what),
            Told::Hidden(hidden) => {
                let at = self.hidden.iter().position(|known| *known == hidden);
                let at = at.unwrap_or_else(|| {
                    self.hidden.push(hidden);
                    self.hidden.len() - 1
                });
                let load = format!("ld.param.u32 {}, [onebuf_told_{at}]", read.to.text);
                if let [first, .., last] = statement.words {
                    self.edits.replace(first, last, load);
                }
            }
        }
    }

    fn declare_hidden(&mut self) -> Result<(), Refusal> {
        let params: Vec<_> =
            (0..self.hidden.len()).map(|at| format!(".param .u32 onebuf_told_{at}")).collect();
        let Some(close) = self.function.close.as_ref() else {
            // There is no parameter list, so one is inserted after the name.
            let list = format!("({})", params.join(", "));
            self.edits.insert_behind(&self.function.name, list);
            return Ok(());
        };
        let comma = if self.function.params.is_empty() || params.is_empty() { "" } else { ", " };
        self.edits.insert_before(close, format!("{comma}{}", params.join(", ")));
        Ok(())
    }

    /// Returns the group size that the kernel requires.
    fn group(&self) -> Result<Option<[usize; 3]>, Refusal> {
        let words = self.function.tuning;
        let Some(at) = words.iter().position(|word| word.is(".reqntid")) else { return Ok(None) };
        let numbers = words[at + 1..].iter().take_while(|word| !word.text.starts_with('.'));
        let numbers = numbers.filter(|word| !word.is(","));
        let sizes: Option<Vec<usize>> = numbers.map(|word| word.text.parse().ok()).collect();
        let sizes = sizes.filter(|sizes| (1..=3).contains(&sizes.len()));
        let sizes = sizes.ok_or_else(|| Refusal::at(&words[at], "a group size that is none"))?;
        Ok(Some([0, 1, 2].map(|at| sizes.get(at).copied().unwrap_or(1))))
    }
}
