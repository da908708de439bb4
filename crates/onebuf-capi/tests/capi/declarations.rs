//! The declarations of `onebuf.h`, parsed: what cbindgen writes, and no other C. The interface for Fortran and the classes for C++ are
//! made of them.

/// The comment above a declaration, by lines.
pub type Comment = Vec<String>;

/// One declaration of the header.
pub enum Declaration {
    /// `#define NAME VALUE`.
    Constant {
        name: String,
        value: String,
        comment: Comment,
    },
    /// `typedef OF NAME;`: another name of an integer.
    Alias {
        name: String,
        of: String,
        comment: Comment,
    },
    Structure {
        name: String,
        fields: Vec<Variable>,
        comment: Comment,
    },
    /// A pointer to a function that the caller provides.
    Callback(Function),
    Function(Function),
}

pub struct Function {
    pub name: String,
    pub result: Type,
    pub parameters: Vec<Variable>,
    pub comment: Comment,
}

/// A field or a parameter.
#[derive(Clone)]
pub struct Variable {
    pub name: String,
    pub of: Type,
    /// The length of an array; `None` for a single value.
    pub length: Option<usize>,
}

#[derive(Clone)]
pub enum Type {
    /// A value of the named type.
    Value(String),
    /// A pointer to this many pointers to the named type: one star is zero.
    Pointer { to: String, is_const: bool, stars: usize },
    /// A pointer to a function, without a name of its own.
    Function { result: Box<Type>, parameters: Vec<Variable> },
}

impl Type {
    /// The type as C has it; empty for a pointer to a function.
    pub fn text(&self) -> String {
        match self {
            Self::Value(name) => name.clone(),
            Self::Pointer { to, is_const, stars } => {
                let before = if *is_const { "const " } else { "" };
                format!("{before}{to} {}", "*".repeat(stars + 1))
            }
            Self::Function { .. } => String::new(),
        }
    }
}

impl Declaration {
    /// Parses a declaration with its comment.
    pub fn parse(block: &str) -> Self {
        let is_comment = |line: &&str| line.trim_start().starts_with("//");
        let comment = block.lines().take_while(is_comment);
        let comment: Comment =
            comment.map(|line| line.trim_start()[2..].trim().to_owned()).collect();
        let code: Vec<&str> = block.lines().filter(|line| !is_comment(line)).collect();
        let code = code.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(rest) = code.strip_prefix("#define ") {
            let (name, value) = rest.split_once(' ').expect("a value");
            return Self::Constant { name: name.to_owned(), value: value.to_owned(), comment };
        }
        let code = code.strip_suffix(';').unwrap_or_else(|| panic!("no declaration: {code}"));
        let Some(defined) = code.strip_prefix("typedef ") else {
            return Self::Function(Function::parse(code, comment));
        };
        if let Some((head, rest)) = defined.split_once(" {") {
            let (fields, _) = rest.rsplit_once('}').expect("the end of a structure");
            let name = head.strip_prefix("struct ").expect("a structure").to_owned();
            return Self::Structure { name, fields: variables(fields, ';'), comment };
        }
        if defined.contains("(*") {
            return Self::Callback(Function::parse(
                &defined.replacen("(*", "", 1).replacen(')', "", 1),
                comment,
            ));
        }
        let (of, name) = defined.rsplit_once(' ').expect("a name");
        Self::Alias { name: name.to_owned(), of: of.to_owned(), comment }
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Constant { name, .. }
            | Self::Alias { name, .. }
            | Self::Structure { name, .. } => name,
            Self::Callback(function) | Self::Function(function) => &function.name,
        }
    }
}

impl Function {
    /// Parses `RESULT NAME(PARAMETERS)`.
    fn parse(code: &str, comment: Comment) -> Self {
        let (head, rest) = code.split_once('(').expect("parameters");
        let Variable { name, of: result, .. } = variable(head);
        let inside = rest.strip_suffix(')').expect("the end of the parameters");
        let parameters = if inside == "void" { Vec::new() } else { variables(inside, ',') };
        Self { name, result, parameters, comment }
    }
}

/// Splits at a separator outside of parentheses.
fn variables(code: &str, separator: char) -> Vec<Variable> {
    let (mut depth, mut part, mut parts) = (0, String::new(), Vec::new());
    for c in code.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if c == separator && depth == 0 {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(c);
        }
    }
    parts.push(part);
    parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).map(variable).collect()
}

/// Parses `TYPE NAME`, `TYPE *NAME`, `TYPE NAME[N]` or `RESULT (*NAME)(PARAMETERS)`.
fn variable(code: &str) -> Variable {
    let code = code.trim();
    if let Some((result, rest)) = code.split_once("(*") {
        let (name, parameters) = rest.split_once(")(").expect("a pointer to a function");
        let inside = parameters.strip_suffix(')').expect("the end of the parameters");
        let result = Box::new(variable(&format!("{} _", result.trim())).of);
        let of = Type::Function { result, parameters: variables(inside, ',') };
        return Variable { name: name.to_owned(), of, length: None };
    }
    let (code, length) = match code.split_once('[') {
        Some((head, rest)) => (head, Some(rest.trim_end_matches(']').parse().expect("a length"))),
        None => (code, None),
    };
    let at = code.rfind(|c: char| c != '_' && !c.is_alphanumeric()).expect("a type") + 1;
    let (of, name) = (code[..at].trim(), code[at..].to_owned());
    let stars = of.matches('*').count();
    let words: Vec<&str> = of.split([' ', '*']).filter(|word| !word.is_empty()).collect();
    let [to] = words.iter().filter(|word| **word != "const").collect::<Vec<_>>()[..] else {
        panic!("not a type: {of}");
    };
    let of = match stars.checked_sub(1) {
        None => Type::Value((*to).to_owned()),
        Some(stars) => Type::Pointer { to: (*to).to_owned(), is_const: words[0] == "const", stars },
    };
    Variable { name, of, length }
}
