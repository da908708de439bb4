//! Constant memory as an argument.
//!
//! OpenCL's driver copies such a buffer to the constant bank and passes its address there. CUDA has no such arguments,
//! so the buffer is read in place. Since a pointer may come from an argument or from a table of the program, the tables
//! move to global memory as well.

use super::{
    Refusal,
    edits::Edits,
    lex::Token,
    parse::{PtxModule, Statement},
};

/// Turns all constant memory of a module into read-only global memory.
pub(super) fn to_global(module: &PtxModule<'_>, edits: &mut Edits) -> Result<(), Refusal> {
    for variable in &module.variables {
        for word in variable.words.iter().filter(|word| word.is(".const")) {
            edits.replace(word, word, ".global");
        }
    }
    let bodies = module.functions.iter().filter_map(|function| function.body.as_ref());
    bodies.flatten().try_for_each(|statement| of_statement(statement, edits))
}

fn of_statement(statement: &Statement<'_>, edits: &mut Edits) -> Result<(), Refusal> {
    let names_it = |word: &&Token<'_>| word.text.split('.').any(|part| part == "const");
    let Some(word) = statement.words.iter().find(names_it) else { return Ok(()) };
    let by = match word.text.split_once(".const.") {
        Some(("ld", rest)) => format!("ld.global.nc.{rest}"),
        Some(("cvta", rest)) => format!("cvta.global.{rest}"),
        Some(("cvta.to", rest)) => format!("cvta.to.global.{rest}"),
        _ => return Err(Refusal::at(word, format!("`{}` beside constant arguments", word.text))),
    };
    edits.replace(word, word, by);
    Ok(())
}
