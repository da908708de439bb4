//! Woven texts are compared as tokens, and compiled where that tells more.

use super::*;

/// A mutant at the first occurrence of a text.
fn mutant(id: usize, source: &str, at: &str, genre: Genre, replacement: &str) -> Mutant {
    let byte = source.find(at).expect("the text is there");
    let line = source[..byte].matches('\n').count() + 1;
    let column = source[..byte].chars().rev().take_while(|c| *c != '\n').count() + 1;
    let (name, package, file) = Default::default();
    Mutant {
        id,
        name,
        package,
        file,
        genre,
        line,
        column,
        replacement: replacement.into(),
        pure: true,
    }
}

/// The woven text, without white space.
fn woven(source: &str, mutants: &[Mutant]) -> (String, Vec<usize>) {
    let woven = weave(source, &mutants.iter().collect::<Vec<_>>()).unwrap();
    syn::parse_file(&woven.text).unwrap_or_else(|error| panic!("{error}: {}", woven.text));
    (woven.text.split_whitespace().collect::<Vec<_>>().join(" "), woven.ids)
}

#[test]
fn a_function_returns_a_mutants_value_before_it_begins() {
    let source = "fn size(x: u8) -> u8 {\n    x + 1\n}\n";
    let mutants =
        [1, 2].map(|id| mutant(id, source, "x + 1", Genre::FnValue, &(id - 1).to_string()));
    let (text, ids) = woven(source, &mutants);
    let first = "if crate::__mutant(1) { return 0; } if crate::__mutant(2) { return 1; }";
    assert_eq!(text, format!("fn size(x: u8) -> u8 {{ {first} x + 1 }}"));
    assert_eq!(ids, [1, 2]);
}

#[test]
fn operands_are_evaluated_once_whatever_the_operator() {
    let source = "fn f(a: u8) -> bool { g(a) + 1 < 3 }";
    let mutants = [
        mutant(1, source, "+", Genre::BinaryOperator, "-"),
        mutant(2, source, "<", Genre::BinaryOperator, ">"),
        mutant(3, source, "<", Genre::BinaryOperator, "<="),
    ];
    let (text, ids) = woven(source, &mutants);
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(text.matches("g(a)").count(), 1);
    let sum = "(match ((g(a)), (1)) { (__l, __r) => if crate::__mutant(1) { __l - __r } else { __l + __r } })";
    let branches = "if crate::__mutant(2) { *__l > *__r } else if crate::__mutant(3) { *__l <= *__r } else { *__l < *__r }";
    assert_eq!(
        text,
        format!(
            "fn f(a: u8) -> bool {{ (match (&({sum}), &(3)) {{ (__l, __r) => {branches} }}) }}"
        )
    );
}

/// `if l == active { l } else { r }` is `l && r` while the mutant is not active, and `l || r` while it is.
#[test]
fn the_right_side_of_and_is_evaluated_only_if_needed() {
    for l in [false, true] {
        for r in [false, true] {
            for active in [false, true] {
                let and = if l == active { l } else { r };
                let or = if l != active { l } else { r };
                assert_eq!([and, or], if active { [l || r, l && r] } else { [l && r, l || r] });
            }
        }
    }
    for (operator, sign) in [("&&", "=="), ("||", "!=")] {
        let source = format!("fn f() -> bool {{ a() {operator} b() }}");
        let (text, _) = woven(&source, &[mutant(1, &source, operator, Genre::BinaryOperator, "x")]);
        let wanted = format!(
            "(match (a()) {{ __l => if __l {sign} crate::__mutant(1) {{ __l }} else {{ b() }} }})"
        );
        assert_eq!(text, format!("fn f() -> bool {{ {wanted} }}"));
    }
}

#[test]
fn arms_guards_fields_assignments_and_signs() {
    let source = "fn f(x: i8) -> S {\n    let mut n = 0;\n    n += match x { 1 if x == y => !q, 2 => -x, _ => 3 };\n    S { a: n, ..base }\n}";
    let mutants = [
        mutant(1, source, "+=", Genre::BinaryOperator, "-="),
        mutant(2, source, "x == y", Genre::MatchArmGuard, "true"),
        mutant(3, source, "x == y", Genre::MatchArmGuard, "false"),
        mutant(4, source, "!q", Genre::UnaryOperator, ""),
        mutant(5, source, "2 =>", Genre::MatchArm, ""),
        mutant(6, source, "a: n", Genre::StructField, ""),
        mutant(7, source, "==", Genre::BinaryOperator, "!="),
    ];
    let (text, ids) = woven(source, &mutants);
    assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7]);
    assert!(
        text.contains("1 if (crate::__mutant(2) || !crate::__mutant(3) && ((match (&(x), &(y))"),
        "{text}"
    );
    assert!(text.contains("{ __x => if crate::__mutant(4) { __x } else { ! __x } })"), "{text}");
    assert!(text.contains("2 if !crate::__mutant(5) => -x"), "{text}");
    assert!(
        text.contains("if crate::__mutant(6) { S { ..base } } else { S { a: n, ..base } }"),
        "{text}"
    );
    assert!(
        text.contains("{ __r => if crate::__mutant(1) { n -= __r; } else { n += __r; } }"),
        "{text}"
    );
}

#[test]
fn what_the_compiler_computes_is_left_alone() {
    let source = "const A: usize = 1 + 2;\nconst fn f() -> usize {\n    3 * 4\n}\nfn g() -> [u8; 5 - 1] {\n    [0; 6 % 4]\n}\nfn h() -> impl Sized { () }
fn i(x: Option<u8>) -> bool { if let Some(y) = x && y == 9 { true } else { false } }\nfn j() -> i8 { -128 }\n";
    let operators = ["+ 2", "* 4", "- 1", "% 4", "&&", "-128"];
    let mut mutants: Vec<_> = (1..)
        .zip(operators)
        .map(|(id, at)| mutant(id, source, at, Genre::BinaryOperator, "/"))
        .collect();
    mutants[5].genre = Genre::UnaryOperator;
    mutants.push(mutant(7, source, "3 * 4", Genre::FnValue, "0"));
    mutants.push(mutant(8, source, "() }", Genre::FnValue, "()"));
    let found = weave(source, &mutants.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!((found.text.as_str(), found.ids.len()), (source, 0));
    // The control: the comparison in the condition can be decided at run time.
    let (text, ids) = woven(source, &[mutant(9, source, "==", Genre::BinaryOperator, "!=")]);
    assert_eq!(ids, [9]);
    assert!(text.contains("if let Some(y) = x && (match (&(y), &(9))"), "{text}");
}

#[test]
fn an_error_is_due_to_the_smallest_part_around_it() {
    let source = "fn f() -> u8 { a + b }";
    let mutants = [
        mutant(1, source, "a + b", Genre::FnValue, "7"),
        mutant(2, source, "+", Genre::BinaryOperator, "-"),
        mutant(3, source, "+", Genre::BinaryOperator, "*"),
    ];
    let woven = weave(source, &mutants.iter().collect::<Vec<_>>()).unwrap();
    let of = |text: &str| {
        let at = woven.text.find(text).unwrap();
        let around =
            woven.regions.iter().filter(|region| region.range.start <= at && at < region.range.end);
        let region = around.min_by_key(|region| region.range.len()).unwrap();
        (region.ids.clone(), region.own)
    };
    assert_eq!(of("7;"), (vec![1], true));
    assert_eq!(of("__l - __r"), (vec![2], true));
    assert_eq!(of("__l * __r"), (vec![3], true));
    assert_eq!(of("__l + __r"), (vec![2, 3], false));
}
