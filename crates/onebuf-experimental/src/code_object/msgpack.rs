//! A MessagePack reader for what descriptions of kernels use: texts, integers, booleans, lists and maps. Each value
//! keeps its position, so that it can be changed in place.

use std::ops::Range;

/// A description has six levels; deeper nesting is an attempt to exhaust the stack.
const MOST_LEVELS: usize = 16;

/// A value and its position. A document has fewer values than bytes, so memory is at most `size_of::<Node>()` times its
/// length.
#[derive(Debug, PartialEq)]
pub(super) struct Node<'b> {
    pub at: Range<usize>,
    pub value: Value<'b>,
}

#[derive(Debug, PartialEq)]
pub(super) enum Value<'b> {
    Number(u64),
    Truth(bool),
    Text(&'b str),
    List(Box<[Node<'b>]>),
    Map(Box<[[Node<'b>; 2]]>),
}

/// Reads the one value in these bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Node<'_>, String> {
    let node = Reader { bytes, next: 0, unclaimed: bytes.len() }.node(0)?;
    match node.at.end == bytes.len() {
        true => Ok(node),
        false => Err(format!("its metadata continue after byte {}", node.at.end)),
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    next: usize,
    /// How many further values the document can have: each takes at least one byte, after those that lists and maps
    /// have announced.
    unclaimed: usize,
}

impl<'b> Reader<'b> {
    /// Reserves room for the values that a length announces. In total never more room than the document has bytes.
    fn room<T>(&mut self, len: usize, values_each: usize) -> Result<Vec<T>, String> {
        let values = len.checked_mul(values_each).filter(|n| *n <= self.bytes.len() - self.next);
        let rest = values.and_then(|values| self.unclaimed.checked_sub(values));
        self.unclaimed = rest.ok_or_else(|| {
            format!("its metadata end before the {len} entries that byte {} announces", self.next)
        })?;
        Ok(Vec::with_capacity(len))
    }

    fn take(&mut self, len: usize) -> Result<&'b [u8], String> {
        let end = self.next.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.next..end));
        let taken = taken.ok_or_else(|| format!("its metadata end before byte {}", self.next))?;
        self.next += len;
        Ok(taken)
    }

    /// A big-endian number of one to eight bytes.
    fn number(&mut self, bytes: usize) -> Result<u64, String> {
        Ok(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> Result<usize, String> {
        self.number(bytes).map(|number| number as usize)
    }

    fn node(&mut self, level: usize) -> Result<Node<'b>, String> {
        let start = self.next;
        if level > MOST_LEVELS {
            return Err(format!("its metadata are nested too deeply at byte {start}"));
        }
        let value = match self.take(1)?[0] {
            small @ 0..0x80 => Value::Number(small.into()),
            head @ 0x80..0x90 => self.map(usize::from(head & 15), level)?,
            head @ 0x90..0xa0 => self.list(usize::from(head & 15), level)?,
            head @ 0xa0..0xc0 => self.text(usize::from(head & 31))?,
            head @ 0xc2..=0xc3 => Value::Truth(head == 0xc3),
            head @ 0xcc..=0xcf => Value::Number(self.number(1 << (head - 0xcc))?),
            head @ 0xd9..=0xdb => {
                let len = self.length(1 << (head - 0xd9))?;
                self.text(len)?
            }
            head @ 0xdc..=0xdd => {
                let len = self.length(2 << (head - 0xdc))?;
                self.list(len, level)?
            }
            head @ 0xde..=0xdf => {
                let len = self.length(2 << (head - 0xde))?;
                self.map(len, level)?
            }
            head => {
                return Err(format!(
                    "its metadata have a value of kind {head:#04x} at byte {start}"
                ));
            }
        };
        Ok(Node { at: start..self.next, value })
    }

    fn text(&mut self, len: usize) -> Result<Value<'b>, String> {
        let start = self.next;
        let text = std::str::from_utf8(self.take(len)?);
        text.map(Value::Text).map_err(|_| format!("its metadata have no text at byte {start}"))
    }

    fn list(&mut self, len: usize, level: usize) -> Result<Value<'b>, String> {
        let mut list = self.room(len, 1)?;
        for _ in 0..len {
            list.push(self.node(level + 1)?);
        }
        Ok(Value::List(list.into()))
    }

    fn map(&mut self, len: usize, level: usize) -> Result<Value<'b>, String> {
        let mut map = self.room(len, 2)?;
        for _ in 0..len {
            let key = self.node(level + 1)?;
            if key.text().is_none() {
                return Err(format!(
                    "its metadata have something without a name at byte {}",
                    key.at.start
                ));
            }
            map.push([key, self.node(level + 1)?]);
        }
        Ok(Value::Map(map.into()))
    }
}

impl<'b> Node<'b> {
    pub fn text(&self) -> Option<&'b str> {
        match self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn number(&self) -> Option<usize> {
        match self.value {
            Value::Number(number) => usize::try_from(number).ok(),
            _ => None,
        }
    }

    pub fn list(&self) -> Option<&[Node<'b>]> {
        match &self.value {
            Value::List(list) => Some(list),
            _ => None,
        }
    }

    pub fn map(&self) -> Option<&[[Node<'b>; 2]]> {
        match &self.value {
            Value::Map(map) => Some(map),
            _ => None,
        }
    }

    /// Returns a key of a map that is not in this list.
    pub fn other_than(&self, names: &[&str]) -> Option<&'b str> {
        let mut keys = self.map().unwrap_or_default().iter().filter_map(|[key, _]| key.text());
        keys.find(|key| !names.contains(key))
    }

    /// Returns the value of a key in a map; an error if the key occurs twice.
    pub fn field(&self, name: &str) -> Result<Option<&Node<'b>>, String> {
        let named = |[key, _]: &&[Node<'b>; 2]| key.text() == Some(name);
        let mut found = self.map().unwrap_or_default().iter().filter(named);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(format!("its metadata have `{name}` twice in one place")),
            (found, None) => Ok(found.map(|[_, value]| value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Value::*, *};

    fn value(bytes: &[u8]) -> Result<Value<'_>, String> {
        read(bytes).map(|node| node.value)
    }

    #[test]
    fn every_width_is_read() {
        assert_eq!(value(&[0x7f]), Ok(Number(127)));
        assert_eq!(value(&[0xcc, 200]), Ok(Number(200)));
        assert_eq!(value(&[0xcd, 1, 2]), Ok(Number(0x102)));
        assert_eq!(value(&[0xce, 1, 2, 3, 4]), Ok(Number(0x0102_0304)));
        assert_eq!(value(&[0xcf, 0, 0, 0, 1, 0, 0, 0, 0]), Ok(Number(1 << 32)));
        assert_eq!(value(&[0xc2]), Ok(Truth(false)));
        for head in [&[0xa2][..], &[0xd9, 2], &[0xda, 0, 2], &[0xdb, 0, 0, 0, 2]] {
            assert_eq!(value(&[head, b"ab"].concat()), Ok(Text("ab")), "{head:?}");
        }
        for head in [&[0x91][..], &[0xdc, 0, 1], &[0xdd, 0, 0, 0, 1]] {
            let read = [head, &[5]].concat();
            let list = super::read(&read).unwrap();
            assert_eq!(
                list.list().unwrap()[0],
                Node { at: head.len()..head.len() + 1, value: Number(5) }
            );
            assert_eq!(list.at, 0..head.len() + 1);
        }
        for head in [&[0x81][..], &[0xde, 0, 1], &[0xdf, 0, 0, 0, 1]] {
            let bytes = [head, &[0xa1, b'k', 9]].concat();
            assert_eq!(read(&bytes).unwrap().field("k").unwrap().unwrap().number(), Some(9));
        }
    }

    #[test]
    fn what_is_not_there_is_not_read() {
        let deep = [&[0x91; 100][..], &[0]].concat();
        let twice: &[u8] = &[0x82, 0xa1, b'k', 1, 0xa1, b'k', 2];
        for wrong in [
            &[][..],
            &[0xcd, 1],
            &[0xa2, b'a'],
            &[0x92, 1],
            &[0x81, 0xa1, b'k'],
            &[0xdb, 255, 255, 255, 255],
            &[0xdd, 255, 255, 255, 255],
        ] {
            assert!(value(wrong).unwrap_err().contains("end before"), "{wrong:?}");
        }
        assert!(value(&deep).unwrap_err().contains("nested"));
        assert!(value(&[1, 2]).unwrap_err().contains("continue after byte 1"));
        assert!(value(&[0x81, 1, 1]).unwrap_err().contains("without a name"));
        assert!(value(&[0xa1, 0xff]).unwrap_err().contains("no text"));
        for other in [0xc0, 0xc1, 0xc4, 0xca, 0xcb, 0xd0, 0xd4, 0xff] {
            assert!(value(&[other, 0, 0]).unwrap_err().contains("of kind"), "{other}");
        }
        assert_eq!(read(twice).unwrap().other_than(&["j"]), Some("k"));
        assert_eq!(read(twice).unwrap().other_than(&["j", "k"]), None);
        assert!(read(twice).unwrap().field("k").unwrap_err().contains("twice"));
    }
}
