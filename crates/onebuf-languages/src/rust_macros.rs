//! Types that macros declare: enough of `macro_rules!` to know their names, methods and fields.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A name, and whether using it is `unsafe`: calling a function, implementing a trait.
pub(crate) type Name = (String, bool);

/// The rules of a macro that declares a public structure.
pub struct Rules {
    /// The variable after `pub struct`, if there is one.
    declares: Option<String>,
    /// `pub fn` and `pub unsafe fn` in `impl … $variable …`.
    methods: Vec<Name>,
}

/// What a call of such a macro declares.
pub struct Declared {
    pub name: String,
    pub methods: Vec<Name>,
    pub fields: Vec<String>,
}

impl Rules {
    pub fn new(rules: TokenStream) -> Self {
        let all: Vec<TokenTree> = rules.into_iter().collect();
        // `(what a call looks like) => {what becomes of it}`
        let body = match all.get(3) {
            Some(TokenTree::Group(body)) => body.stream().into_iter().collect(),
            _ => Vec::new(),
        };
        let declares = body.windows(4).find_map(|four| match four {
            [
                TokenTree::Ident(vis),
                TokenTree::Ident(word),
                TokenTree::Punct(_),
                TokenTree::Ident(name),
            ] if vis == "pub" && word == "struct" => Some(name.to_string()),
            _ => None,
        });
        let methods = declares.as_deref().map_or_else(Vec::new, |name| methods(&body, name));
        Self { declares, methods }
    }

    /// What a call declares: the first name in it, with the names in its last braces as fields.
    pub fn apply(&self, call: TokenStream) -> Option<Declared> {
        self.declares.as_ref()?;
        let (names, groups) = outside_attributes(call);
        let fields = groups.into_iter().flat_map(|group| outside_attributes(group).0).collect();
        Some(Declared { name: names.into_iter().next()?, methods: self.methods.clone(), fields })
    }
}

/// The public functions of `impl` blocks for a variable.
fn methods(body: &[TokenTree], of: &str) -> Vec<Name> {
    let mut found = Vec::new();
    for (at, token) in body.iter().enumerate() {
        if token.to_string() != "impl" {
            continue;
        }
        let head = body[at..].iter().take_while(|token| braces(token).is_none());
        let head: Vec<String> = head.map(ToString::to_string).collect();
        let block = body.get(at + head.len()).and_then(braces);
        if !head.iter().any(|word| word == of) || head.iter().any(|word| word == "for") {
            continue;
        }
        let words: Vec<String> =
            block.into_iter().flatten().map(|token| token.to_string()).collect();
        found.extend(words.windows(4).filter_map(|four| match four {
            [public, function, name, _] if public == "pub" && function == "fn" => {
                Some((name.clone(), false))
            }
            [public, is, function, name]
                if public == "pub" && is == "unsafe" && function == "fn" =>
            {
                Some((name.clone(), true))
            }
            _ => None,
        }));
    }
    found
}

fn braces(token: &TokenTree) -> Option<TokenStream> {
    match token {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group.stream()),
        _ => None,
    }
}

fn outside_attributes(tokens: TokenStream) -> (Vec<String>, Vec<TokenStream>) {
    let (mut names, mut groups) = (Vec::new(), Vec::new());
    for token in tokens {
        match &token {
            TokenTree::Ident(name) => names.push(name.to_string()),
            token => groups.extend(braces(token)),
        }
    }
    (names, groups)
}
