//! Parses the relevant parts of a PTX module: its head, its functions with their parameters, and the extent of each
//! statement. The assembler checks the instructions themselves.

use super::{Refusal, lex::Token};

/// A module as written. It borrows the tokens, so that none is stored twice.
pub(super) struct PtxModule<'t> {
    /// The words after `.target`.
    pub target: &'t [Token<'t>],
    /// The last word of the head; declarations may follow it.
    pub address_size: Token<'t>,
    pub functions: Vec<Function<'t>>,
    pub variables: Vec<Variable<'t>>,
    /// OpenCL's metadata sections: the first and the last token of each.
    pub notes: Vec<[Token<'t>; 2]>,
}

/// A kernel, or a function that kernels call.
pub(super) struct Function<'t> {
    pub is_entry: bool,
    pub name: Token<'t>,
    pub params: Vec<Param<'t>>,
    /// The token after the last parameter; `None` if there is no list.
    pub close: Option<Token<'t>>,
    /// The words between the parameters and the body, such as `.reqntid 32, 2, 1`.
    pub tuning: &'t [Token<'t>],
    /// `None` for a declaration.
    pub body: Option<Vec<Statement<'t>>>,
}

/// A parameter of a function.
pub(super) struct Param<'t> {
    pub name: Token<'t>,
    /// The first and the last token of its declaration.
    pub first: Token<'t>,
    pub last: Token<'t>,
    /// The type, such as `.u64`.
    pub kind: Token<'t>,
    pub is_array: bool,
    pub bytes: usize,
    pub pointer: Option<Pointer<'t>>,
}

/// A parameter's declaration of the memory that it points to.
pub(super) struct Pointer<'t> {
    /// The words from `.ptr` to the alignment.
    pub words: &'t [Token<'t>],
    /// The address space, such as `.shared`; `None` for a generic address.
    pub space: Option<Token<'t>>,
    pub align: usize,
}

/// A variable of the module.
pub(super) struct Variable<'t> {
    pub words: &'t [Token<'t>],
}

/// An instruction or declaration of a body, without the token that ends it.
pub(super) struct Statement<'t> {
    pub words: &'t [Token<'t>],
    /// The token that ends it.
    pub end: &'t Token<'t>,
}

/// Parses a whole module from the tokens of a text.
pub(super) fn parse<'t>(tokens: &'t [Token<'t>]) -> Result<PtxModule<'t>, Refusal> {
    let mut parser = Parser { tokens, next: 0 };
    let mut module = parser.head()?;
    while let Some(token) = parser.peek() {
        parser.item(token, &mut module)?;
    }
    Ok(module)
}

/// Parses a list of parameters in parentheses, with which the tokens begin.
pub(super) fn params<'t>(tokens: &'t [Token<'t>]) -> Result<Vec<Param<'t>>, Refusal> {
    Parser { tokens, next: 0 }.params().map(|(params, _)| params)
}

struct Parser<'t> {
    tokens: &'t [Token<'t>],
    next: usize,
}

/// Alignment of a pointer that states none, by PTX's manual.
const POINTER_ALIGN: usize = 4;

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next).copied()
    }

    fn peek_is(&self, text: &str) -> bool {
        self.peek().is_some_and(|token| token.is(text))
    }

    /// The line of the last token that was read.
    fn line(&self) -> usize {
        let last = self.next.saturating_sub(1).min(self.tokens.len().saturating_sub(1));
        self.tokens.get(last).map_or(1, |token| token.line)
    }

    fn take(&mut self) -> Result<Token<'t>, Refusal> {
        let line = self.line();
        let token = self.peek().ok_or_else(|| Refusal::new(line, "the text ends too early"))?;
        self.next += 1;
        Ok(token)
    }

    fn take_if(&mut self, text: &str) -> Option<Token<'t>> {
        let token = self.peek().filter(|token| token.is(text))?;
        self.next += 1;
        Some(token)
    }

    fn expect(&mut self, text: &str) -> Result<Token<'t>, Refusal> {
        let token = self.take()?;
        match token.is(text) {
            true => Ok(token),
            false => Err(Refusal::at(&token, format!("`{}` where `{text}` belongs", token.text))),
        }
    }

    fn word(&mut self) -> Result<Token<'t>, Refusal> {
        let token = self.take()?;
        match token.is_word() {
            true => Ok(token),
            false => Err(Refusal::at(&token, format!("`{}` where a word belongs", token.text))),
        }
    }

    /// A user-defined name.
    fn name(&mut self) -> Result<Token<'t>, Refusal> {
        let token = self.word()?;
        let strange = |byte: u8| byte.is_ascii_digit() || b".%".contains(&byte);
        match token.text.bytes().next().is_some_and(strange) {
            true => Err(Refusal::at(&token, format!("`{}` where a name belongs", token.text))),
            false => Ok(token),
        }
    }

    fn number(&mut self) -> Result<usize, Refusal> {
        let token = self.word()?;
        let number = token.text.parse();
        number.map_err(|_| Refusal::at(&token, format!("`{}` where a number belongs", token.text)))
    }

    /// The tokens since a position.
    fn since(&self, start: usize) -> &'t [Token<'t>] {
        &self.tokens[start..self.next]
    }

    /// `.version`, `.target` and `.address_size`, in this order.
    fn head(&mut self) -> Result<PtxModule<'t>, Refusal> {
        self.expect(".version")?;
        self.word()?;
        self.expect(".target")?;
        let start = self.next;
        self.word()?;
        while self.take_if(",").is_some() {
            self.word()?;
        }
        let target = self.since(start);
        self.expect(".address_size")?;
        let address_size = self.word()?;
        let (functions, variables, notes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(PtxModule { target, address_size, functions, variables, notes })
    }

    /// A function, a variable, or debug information.
    fn item(&mut self, first: Token<'t>, module: &mut PtxModule<'t>) -> Result<(), Refusal> {
        match first.text {
            ".file" => self.skip_line(first.line),
            ".pragma" => drop(self.until_semicolon()?),
            ".visible" | ".weak" | ".extern" | ".common" | ".entry" | ".func" => {
                let linking = [".visible", ".weak", ".extern", ".common"];
                let is_linking = linking.iter().any(|word| first.is(word));
                let after = self.tokens.get(self.next + usize::from(is_linking));
                match after.map(|token| token.text) {
                    Some(".entry" | ".func") => module.functions.push(self.function()?),
                    _ => module.variables.push(Variable { words: self.until_semicolon()? }),
                }
            }
            ".global" | ".const" | ".shared" => {
                module.variables.push(Variable { words: self.until_semicolon()? });
            }
            ".metadata_section" => module.notes.push([first, self.skip_braces()?]),
            other => return Err(Refusal::at(&first, format!("`{other}` between functions"))),
        }
        Ok(())
    }

    fn skip_line(&mut self, line: usize) {
        while self.peek().is_some_and(|token| token.line == line) {
            self.next += 1;
        }
    }

    /// Skips a word and the braces after it; returns the closing one.
    fn skip_braces(&mut self) -> Result<Token<'t>, Refusal> {
        self.take()?;
        self.expect("{")?;
        let mut depth = 1;
        loop {
            let token = self.take()?;
            depth = match token.text {
                "{" => depth + 1,
                "}" if depth == 1 => return Ok(token),
                "}" => depth - 1,
                _ => depth,
            };
        }
    }

    /// Everything up to and including the next semicolon.
    fn until_semicolon(&mut self) -> Result<&'t [Token<'t>], Refusal> {
        let start = self.next;
        while !self.take()?.is(";") {}
        Ok(&self.tokens[start..self.next - 1])
    }

    fn function(&mut self) -> Result<Function<'t>, Refusal> {
        let mut first = self.take()?;
        if ![".entry", ".func"].contains(&first.text) {
            first = self.take()?;
        }
        let is_entry = first.is(".entry");
        if self.peek_is("(") {
            self.params()?; // what a function returns
        }
        let name = self.name()?;
        let (params, close) = match self.peek_is("(") {
            true => self.params().map(|(params, close)| (params, Some(close)))?,
            false => (Vec::new(), None),
        };
        let tuning = self.tuning()?;
        let body = match self.take()?.is("{") {
            true => Some(self.body()?),
            false => None,
        };
        Ok(Function { is_entry, name, params, close, tuning, body })
    }

    /// Parses directives that bound a launch or guide the compiler, and their numbers.
    fn tuning(&mut self) -> Result<&'t [Token<'t>], Refusal> {
        let known = [".reqntid", ".maxntid", ".minnctapersm", ".maxnreg", ".noreturn", ","];
        let start = self.next;
        while !self.peek_is("{") && !self.peek_is(";") {
            let word = self.take()?;
            let is_number = word.text.bytes().all(|byte| byte.is_ascii_digit());
            if !known.contains(&word.text) && !is_number {
                return Err(Refusal::at(&word, format!("`{}` before a body", word.text)));
            }
        }
        Ok(self.since(start))
    }

    /// Parses a list in parentheses; also returns the closing one.
    fn params(&mut self) -> Result<(Vec<Param<'t>>, Token<'t>), Refusal> {
        self.expect("(")?;
        let mut params = Vec::new();
        if let Some(close) = self.take_if(")") {
            return Ok((params, close));
        }
        loop {
            params.push(self.param()?);
            if let Some(close) = self.take_if(")") {
                return Ok((params, close));
            }
            self.expect(",")?;
        }
    }

    /// `.param [.align N] .type [.ptr …] name [\[N\]]`.
    fn param(&mut self) -> Result<Param<'t>, Refusal> {
        let first = self.expect(".param")?;
        if self.take_if(".align").is_some() {
            self.number()?;
        }
        let kind = self.word()?;
        let element = type_bytes(kind.text).ok_or_else(|| strange_type(&kind))?;
        let pointer = match self.peek_is(".ptr") {
            true => Some(self.pointer()?),
            false => None,
        };
        let name = self.name()?;
        let (mut bytes, mut last, is_array) = (element, name, self.take_if("[").is_some());
        if is_array {
            let count = self.number()?;
            bytes = element.checked_mul(count).ok_or_else(|| Refusal::at(&name, "too large"))?;
            last = self.expect("]")?;
        }
        Ok(Param { name, first, last, kind, is_array, bytes, pointer })
    }

    /// `.ptr [.space] [.align N]`.
    fn pointer(&mut self) -> Result<Pointer<'t>, Refusal> {
        let start = self.next;
        self.expect(".ptr")?;
        let spaces = [".global", ".shared", ".const", ".local"];
        let space = self.peek().filter(|token| spaces.contains(&token.text));
        self.next += usize::from(space.is_some());
        let align = match self.take_if(".align") {
            Some(_) => self.number()?,
            None => POINTER_ALIGN,
        };
        if let Some(kind) = self.peek().filter(|token| token.text.starts_with('.')) {
            return Err(strange_type(&kind));
        }
        Ok(Pointer { words: self.since(start), space, align })
    }

    /// Parses statements up to the closing brace of the body; inner scopes are treated as statements.
    fn body(&mut self) -> Result<Vec<Statement<'t>>, Refusal> {
        let (mut statements, mut depth) = (Vec::new(), 1usize);
        loop {
            let first = self.take()?;
            match first.text {
                "{" => depth += 1,
                "}" if depth == 1 => return Ok(statements),
                "}" => depth -= 1,
                ";" => {}
                ".loc" => self.skip_line(first.line),
                _ if is_label(&first) && self.take_if(":").is_some() => {}
                _ => statements.push(self.statement()?),
            }
        }
    }

    /// Parses the statement whose first word was read.
    fn statement(&mut self) -> Result<Statement<'t>, Refusal> {
        let first = self.next - 1;
        self.until_semicolon()?;
        let end = self.next - 1;
        Ok(Statement { words: &self.tokens[first..end], end: &self.tokens[end] })
    }
}

fn is_label(token: &Token<'_>) -> bool {
    token.is_word() && !token.text.starts_with(['%', '.'])
}

fn strange_type(kind: &Token<'_>) -> Refusal {
    let why = match kind.text {
        ".texref" | ".surfref" | ".samplerref" => "images and samplers are not grafted",
        _ => "which is not known",
    };
    Refusal::at(kind, format!("a parameter of type `{}`: {why}", kind.text))
}

/// Returns the size of a parameter's type if it is numeric.
fn type_bytes(name: &str) -> Option<usize> {
    Some(match name {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lex::tokens;

    /// A module with these items.
    fn with(items: &str) -> String {
        format!(".version 8.8\n.target sm_90\n.address_size 64\n{items}\n")
    }

    fn refusal(items: &str) -> String {
        let text = with(items);
        match parse(&tokens(&text).ok().unwrap()) {
            Ok(_) => panic!("accepted: {items}"),
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn a_body_is_its_statements_whatever_lies_between() {
        let body = ".loc 1 2 3\nadd.u32 a, b, c;\n;\n{\nmov.u32 d, e;\n{ sub.u32 f, g; }\n}\n$L1:\nbra $L1;\nret;\n";
        let text = with(&format!(
            ".file 1 \"a.cl\"\n.entry k()\n{{\n{body}}}\n.entry second()\n{{\nexit;\n}}"
        ));
        let tokens = tokens(&text).ok().unwrap();
        let module = parse(&tokens).ok().unwrap();
        let names: Vec<_> = module.functions.iter().map(|function| function.name.text).collect();
        assert_eq!(names, ["k", "second"]);
        let statements = |function: usize| -> Vec<(&str, usize)> {
            let body = module.functions[function].body.as_ref().unwrap().iter();
            body.map(|statement| (statement.words[0].text, statement.words.len())).collect()
        };
        assert_eq!(
            statements(0),
            [("add.u32", 6), ("mov.u32", 4), ("sub.u32", 4), ("bra", 2), ("ret", 1)]
        );
        assert_eq!(statements(1), [("exit", 1)]);
    }

    #[test]
    fn metadata_ends_at_its_own_brace() {
        let text =
            with(".metadata_section {\n.a { 1 }\n.b { .c { 2 } }\n}\n.entry k()\n{\nret;\n}");
        let tokens = tokens(&text).ok().unwrap();
        let module = parse(&tokens).ok().unwrap();
        let [[first, last]] = &module.notes[..] else { panic!("one note") };
        assert!(text[first.at..].starts_with(".metadata_section"));
        assert!(text[last.at..].starts_with("}\n.entry k()"));
        assert_eq!(module.functions.len(), 1);
        assert!(refusal(".metadata_section {\n.a { 1 }").contains("ends too early"));
    }

    #[test]
    fn parameters_have_the_size_of_their_type() {
        let text =
            with(".entry k(.param .u8 a, .param .f16 b, .param .s32 c, .param .f64 d)\n{\nret;\n}");
        let tokens = tokens(&text).ok().unwrap();
        let module = parse(&tokens).ok().unwrap();
        let sizes: Vec<_> = module.functions[0].params.iter().map(|param| param.bytes).collect();
        assert_eq!(sizes, [1, 2, 4, 8]);
        assert!(refusal(".entry k(.param .texref t)\n{\nret;\n}").contains("images and samplers"));
        assert!(refusal(".entry k(.param .what t)\n{\nret;\n}").contains("not known"));
        for name in ["3", "%k", ".k"] {
            let text = refusal(&format!(".entry {name}()\n{{\nret;\n}}"));
            assert!(text.contains("where a name belongs"), "{text}");
        }
    }

    #[test]
    fn directives_before_a_body_are_known_ones() {
        let text = with(".entry k() .reqntid 8, 4 .maxnreg 32\n{\nret;\n}");
        let tokens = tokens(&text).ok().unwrap();
        let module = parse(&tokens).ok().unwrap();
        let words: Vec<_> = module.functions[0].tuning.iter().map(|word| word.text).collect();
        assert_eq!(words, [".reqntid", "8", ",", "4", ".maxnreg", "32"]);
        assert!(refusal(".entry k() .other 8\n{\nret;\n}").contains("`.other` before a body"));
    }
}
