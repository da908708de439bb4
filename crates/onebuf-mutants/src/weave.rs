//! Puts every mutant of a file into its text, each behind a condition that is decided at run time.

use crate::list::{Genre, Mutant};
use std::{collections::HashMap, ops::Range};
use syn::{BinOp, Expr, UnOp, spanned::Spanned, visit::Visit};

/// A file with its mutants in it.
pub struct Woven {
    pub text: String,
    /// The ids of the mutants that the text contains.
    pub ids: Vec<usize>,
    pub regions: Vec<Region>,
}

/// A part of the text, and the mutants that an error of the compiler there is due to.
pub struct Region {
    pub range: Range<usize>,
    pub ids: Vec<usize>,
    /// The text exists for one mutant only; otherwise it is what surrounds some.
    pub own: bool,
}

enum Piece {
    Text(String),
    /// Text that exists for one mutant only.
    Of(usize, String),
    /// A part of the source, with the mutants that lie in it.
    Source(Range<usize>),
}

struct Edit {
    range: Range<usize>,
    ids: Vec<usize>,
    pieces: Vec<Piece>,
    children: Vec<Edit>,
}

/// Weaves those of the mutants that can be decided at run time. Constant code has none, and neither has a function with an opaque type.
pub fn weave(source: &str, mutants: &[&Mutant]) -> syn::Result<Woven> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder { source, wanted: HashMap::new(), edits: Vec::new() };
    for mutant in mutants {
        let key = (mutant.genre, offset(source, mutant.line, mutant.column));
        finder.wanted.entry(key).or_default().push((mutant.id, mutant.replacement.clone()));
    }
    finder.visit_file(&file);
    let edits = nest(finder.edits);
    let mut woven = Woven { text: String::new(), ids: Vec::new(), regions: Vec::new() };
    render(source, 0..source.len(), &edits, &mut woven);
    woven.ids.sort_unstable();
    woven.ids.dedup();
    Ok(woven)
}

/// The byte at a line and a column, both counted from 1, the column in characters.
pub fn offset(source: &str, line: usize, column: usize) -> usize {
    let start: usize = source.split_inclusive('\n').take(line - 1).map(str::len).sum();
    let within = source[start..].char_indices().nth(column - 1);
    within.map_or(source.len(), |(byte, _)| start + byte)
}

/// The condition that is true while a mutant is active.
fn active(id: usize) -> String {
    format!("crate::__mutant({id})")
}

/// Edits inside each other become children. Of two with one range the first found stays outside.
fn nest(mut edits: Vec<Edit>) -> Vec<Edit> {
    edits.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
    let mut top: Vec<Edit> = Vec::new();
    for edit in edits {
        let mut level = &mut top;
        while level.last().is_some_and(|last| last.range.end >= edit.range.end) {
            level = &mut level.last_mut().expect("there is a last one").children;
        }
        level.push(edit);
    }
    top
}

fn render(source: &str, range: Range<usize>, edits: &[Edit], woven: &mut Woven) {
    let mut at = range.start;
    for edit in
        edits.iter().filter(|edit| range.start <= edit.range.start && edit.range.end <= range.end)
    {
        woven.text.push_str(&source[at..edit.range.start]);
        let start = woven.text.len();
        for piece in &edit.pieces {
            match piece {
                Piece::Text(text) => woven.text.push_str(text),
                Piece::Of(id, text) => {
                    let start = woven.text.len();
                    woven.text.push_str(text);
                    let range = start..woven.text.len();
                    woven.regions.push(Region { range, ids: vec![*id], own: true });
                }
                Piece::Source(part) => render(source, part.clone(), &edit.children, woven),
            }
        }
        woven.regions.push(Region {
            range: start..woven.text.len(),
            ids: edit.ids.clone(),
            own: false,
        });
        woven.ids.extend(&edit.ids);
        at = edit.range.end;
    }
    woven.text.push_str(&source[at..range.end]);
}

struct Finder<'s> {
    source: &'s str,
    wanted: HashMap<(Genre, usize), Vec<(usize, String)>>,
    edits: Vec<Edit>,
}

fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

fn text(text: &str) -> Piece {
    Piece::Text(text.to_owned())
}

impl Finder<'_> {
    fn wanted(&mut self, genre: Genre, start: usize) -> Vec<(usize, String)> {
        self.wanted.remove(&(genre, start)).unwrap_or_default()
    }

    fn edit(&mut self, range: Range<usize>, mutants: &[(usize, String)], pieces: Vec<Piece>) {
        let ids = mutants.iter().map(|(id, _)| *id).collect();
        self.edits.push(Edit { range, ids, pieces, children: Vec::new() });
    }

    /// A function returns the mutant's value before it begins. Returns whether its body may have mutants, too.
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) -> bool {
        if signature.constness.is_some() || signature.unsafety.is_some() {
            return false;
        }
        let opaque = self.source[range(&signature.output)].contains("impl ");
        let Some(first) = block.stmts.first().filter(|_| !opaque) else { return true };
        let mutants = self.wanted(Genre::FnValue, range(first).start);
        if !mutants.is_empty() {
            let mut pieces = vec![text("{")];
            for (id, value) in &mutants {
                pieces.push(Piece::Of(*id, format!(" if {} {{ return {value}; }}", active(*id))));
            }
            self.edit(block.brace_token.span.open().byte_range(), &mutants, pieces);
        }
        true
    }

    /// `head` evaluates the operands, `tail` ends what it began; between them each mutant is a branch.
    fn branches(
        mutants: &[(usize, String)],
        with: impl Fn(&str) -> String,
        original: &str,
    ) -> Vec<Piece> {
        let branch = |(id, operator): &(usize, String)| {
            Piece::Of(*id, format!("if {} {{ {} }} else ", active(*id), with(operator)))
        };
        let mut pieces: Vec<_> = mutants.iter().map(branch).collect();
        pieces.push(Piece::Text(format!("{{ {} }}", with(original))));
        pieces
    }

    fn binary(&mut self, node: &syn::ExprBinary) {
        let operator = range(&node.op);
        let mutants = self.wanted(Genre::BinaryOperator, operator.start);
        if mutants.is_empty() {
            return;
        }
        let (left, right) = (Piece::Source(range(&node.left)), Piece::Source(range(&node.right)));
        let original = &self.source[operator];
        let mut pieces;
        match node.op {
            BinOp::And(_) | BinOp::Or(_) => {
                if has_let(&node.left) || has_let(&node.right) {
                    return;
                }
                let decided = if matches!(node.op, BinOp::And(_)) { "==" } else { "!=" };
                let rest = format!(
                    ") {{ __l => if __l {decided} {} {{ __l }} else {{ ",
                    active(mutants[0].0)
                );
                pieces = vec![text("(match ("), left, Piece::Text(rest), right, text(" } })")];
            }
            BinOp::Eq(_)
            | BinOp::Ne(_)
            | BinOp::Lt(_)
            | BinOp::Gt(_)
            | BinOp::Le(_)
            | BinOp::Ge(_) => {
                pieces = vec![
                    text("(match (&("),
                    left,
                    text("), &("),
                    right,
                    text(")) { (__l, __r) => "),
                ];
                pieces.extend(Self::branches(
                    &mutants,
                    |operator| format!("*__l {operator} *__r"),
                    original,
                ));
                pieces.push(text(" })"));
            }
            BinOp::Add(_)
            | BinOp::Sub(_)
            | BinOp::Mul(_)
            | BinOp::Div(_)
            | BinOp::Rem(_)
            | BinOp::Shl(_)
            | BinOp::Shr(_)
            | BinOp::BitAnd(_)
            | BinOp::BitOr(_)
            | BinOp::BitXor(_) => {
                pieces =
                    vec![text("(match (("), left, text("), ("), right, text(")) { (__l, __r) => ")];
                pieces.extend(Self::branches(
                    &mutants,
                    |operator| format!("__l {operator} __r"),
                    original,
                ));
                pieces.push(text(" })"));
            }
            // An assignment: its value is computed first, and its place is written down in each branch.
            _ => {
                pieces = vec![text("(match ("), right, text(") { __r => ")];
                for (id, operator) in &mutants {
                    pieces.push(Piece::Of(*id, format!("if {} {{ ", active(*id))));
                    pieces.push(Piece::Source(range(&node.left)));
                    pieces.push(Piece::Of(*id, format!(" {operator} __r; }} else ")));
                }
                pieces.extend([text("{ "), left, Piece::Text(format!(" {original} __r; }} }})"))]);
            }
        }
        self.edit(range(node), &mutants, pieces);
    }

    fn unary(&mut self, node: &syn::ExprUnary) {
        let mutants = self.wanted(Genre::UnaryOperator, range(&node.op).start);
        // The smallest integer has no positive one: `-128` is not `128` negated.
        let literal = matches!(node.op, UnOp::Neg(_)) && matches!(*node.expr, Expr::Lit(_));
        if mutants.is_empty() || literal {
            return;
        }
        let operator = &self.source[range(&node.op)];
        let mut pieces =
            vec![text("(match ("), Piece::Source(range(&node.expr)), text(") { __x => ")];
        pieces.extend(Self::branches(&mutants, |operator| format!("{operator} __x"), operator));
        pieces.push(text(" })"));
        self.edit(range(node), &mutants, pieces);
    }

    /// An arm is left out by a guard, if another arm takes whatever the others leave.
    fn arms(&mut self, node: &syn::ExprMatch) {
        let takes_all =
            |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none();
        if !node.arms.iter().any(takes_all) {
            return;
        }
        for arm in &node.arms {
            let mutants = self.wanted(Genre::MatchArm, range(arm).start);
            if let Some((id, _)) = mutants.first() {
                let pieces = vec![Piece::Of(*id, format!(" if !{} =>", active(*id)))];
                self.edit(range(&arm.fat_arrow_token), &mutants, pieces);
            }
        }
    }

    fn guard(&mut self, arm: &syn::Arm) {
        let Some((_, guard)) = &arm.guard else { return };
        let mutants = self.wanted(Genre::MatchArmGuard, range(&**guard).start);
        if mutants.is_empty() || has_let(guard) {
            return;
        }
        let mut pieces = vec![text("(")];
        for (id, value) in &mutants {
            let condition = if value == "true" {
                format!("{} || ", active(*id))
            } else {
                format!("!{} && ", active(*id))
            };
            pieces.push(Piece::Of(*id, condition));
        }
        pieces.extend([text("("), Piece::Source(range(&**guard)), text("))")]);
        self.edit(range(&**guard), &mutants, pieces);
    }

    /// A field less: what is left out has the value of the base.
    fn fields(&mut self, node: &syn::ExprStruct) {
        let whole = range(node);
        let (mut pieces, mut mutants) = (vec![text("(")], Vec::new());
        for pair in node.fields.pairs() {
            let field = range(*pair.value());
            let end = pair.punct().map_or(field.end, |comma| range(*comma).end);
            let found = self.wanted(Genre::StructField, field.start);
            if let Some((id, _)) = found.first() {
                pieces.push(Piece::Of(*id, format!("if {} {{ ", active(*id))));
                pieces.extend([
                    Piece::Source(whole.start..field.start),
                    Piece::Source(end..whole.end),
                ]);
                pieces.push(Piece::Of(*id, " } else ".to_owned()));
            }
            mutants.extend(found);
        }
        if mutants.is_empty() {
            return;
        }
        pieces.extend([text("{ "), Piece::Source(whole.clone()), text(" })")]);
        self.edit(whole, &mutants, pieces);
    }
}

/// Whether a condition binds names: `if let Some(x) = y && x > 3`.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(node) => has_let(&node.left) || has_let(&node.right),
        _ => false,
    }
}

impl<'a> Visit<'a> for Finder<'_> {
    fn visit_item_fn(&mut self, node: &'a syn::ItemFn) {
        if self.function(&node.sig, &node.block) {
            syn::visit::visit_block(self, &node.block);
        }
    }

    fn visit_impl_item_fn(&mut self, node: &'a syn::ImplItemFn) {
        if self.function(&node.sig, &node.block) {
            syn::visit::visit_block(self, &node.block);
        }
    }

    fn visit_trait_item_fn(&mut self, node: &'a syn::TraitItemFn) {
        if let Some(block) = node.default.as_ref().filter(|block| self.function(&node.sig, block)) {
            syn::visit::visit_block(self, block);
        }
    }

    fn visit_expr_binary(&mut self, node: &'a syn::ExprBinary) {
        self.binary(node);
        syn::visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'a syn::ExprUnary) {
        self.unary(node);
        syn::visit::visit_expr_unary(self, node);
    }

    fn visit_expr_match(&mut self, node: &'a syn::ExprMatch) {
        self.arms(node);
        syn::visit::visit_expr_match(self, node);
    }

    fn visit_arm(&mut self, node: &'a syn::Arm) {
        self.guard(node);
        syn::visit::visit_arm(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'a syn::ExprStruct) {
        self.fields(node);
        syn::visit::visit_expr_struct(self, node);
    }

    // Constants are computed by the compiler, which knows no environment.
    fn visit_item_const(&mut self, _: &'a syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'a syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'a syn::TraitItemConst) {}
    fn visit_item_static(&mut self, _: &'a syn::ItemStatic) {}
    fn visit_expr_const(&mut self, _: &'a syn::ExprConst) {}
    fn visit_variant(&mut self, _: &'a syn::Variant) {}
    fn visit_type(&mut self, _: &'a syn::Type) {}
    fn visit_generic_argument(&mut self, _: &'a syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'a syn::Pat) {}
    fn visit_expr_repeat(&mut self, node: &'a syn::ExprRepeat) {
        self.visit_expr(&node.expr);
    }
}

#[cfg(test)]
mod tests;
