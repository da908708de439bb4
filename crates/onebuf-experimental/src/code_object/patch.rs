//! Turns an argument that HIP's runtime would fill into one that the launch passes.
//!
//! The note must keep its length, because the offsets of everything after it are fixed. The new words are shorter, and
//! MessagePack allows a text's length to be written in more bytes than needed: that takes up the rest.

use super::msgpack::Node;
use std::ops::Range;

/// Shorter texts have their length in their first byte.
const SHORT: usize = 32;

/// Returns the range of the argument's description in the document, and its replacement: a value of the same size, not
/// in group memory.
pub(super) fn as_value(
    argument: &Node<'_>,
    document: &[u8],
) -> Result<(Range<usize>, Vec<u8>), String> {
    let at = argument.at.clone();
    let entries = argument.map().unwrap_or_default();
    let head = entries.first().map_or(at.end, |[key, _]| key.at.start);
    let mut pieces = vec![Piece::Kept(&document[at.start..head])];
    for [key, value] in entries {
        pieces.push(Piece::of(key, key.text(), document));
        pieces.push(Piece::of(value, changed(key, value), document));
    }
    let least: usize = pieces.iter().map(Piece::bytes).sum();
    let mut spare =
        at.len().checked_sub(least).ok_or("an argument whose words are too short to change")?;
    let mut bytes = Vec::with_capacity(at.len());
    pieces.iter().for_each(|piece| piece.write(&mut bytes, &mut spare));
    match spare {
        0 => Ok((at, bytes)),
        _ => Err("an argument with too few words to change".into()),
    }
}

/// The new text of a field.
fn changed<'n>(key: &Node<'_>, value: &Node<'n>) -> Option<&'n str> {
    match key.text() {
        Some(".value_kind") => Some("by_value"),
        // A value in local memory would be treated as local memory, whatever its kind.
        Some(".address_space") => Some("global"),
        _ => value.text(),
    }
}

enum Piece<'n> {
    /// A text whose length may be written in a longer form.
    Text(&'n str),
    Kept(&'n [u8]),
}

impl<'n> Piece<'n> {
    fn of(node: &Node<'_>, text: Option<&'n str>, document: &'n [u8]) -> Piece<'n> {
        match text.filter(|text| text.len() < SHORT) {
            Some(text) => Piece::Text(text),
            None => Piece::Kept(&document[node.at.clone()]),
        }
    }

    /// The minimum size in bytes.
    fn bytes(&self) -> usize {
        match self {
            Piece::Text(text) => 1 + text.len(),
            Piece::Kept(bytes) => bytes.len(),
        }
    }

    fn write(&self, to: &mut Vec<u8>, spare: &mut usize) {
        let text = match self {
            Piece::Text(text) => text,
            Piece::Kept(bytes) => return to.extend(*bytes),
        };
        let len = text.len() as u8;
        let head: &[u8] = match *spare {
            0 => &[0xa0 | len],
            1 => &[0xd9, len],
            2 | 3 => &[0xda, 0, len],
            _ => &[0xdb, 0, 0, 0, len],
        };
        *spare -= head.len() - 1;
        to.extend(head);
        to.extend(text.as_bytes());
    }
}
