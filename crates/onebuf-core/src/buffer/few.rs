//! A list that does not allocate for up to two elements.
//!
//! Most buffers have one replica and two aliases, and one queue uses them through one guard at a time. For a buffer that is wrapped for
//! one launch, allocating the lists would cost more than their contents.

use std::{
    hash::{Hash, Hasher},
    mem,
    ops::{Deref, DerefMut},
    slice,
};

#[derive(Clone, Debug, Default)]
pub(crate) enum Few<T> {
    #[default]
    None,
    One(T),
    Two([T; 2]),
    /// Any number of elements. Stays `Many` when elements are removed, so that the allocation is reused.
    Many(Vec<T>),
}

impl<T> Few<T> {
    pub fn push(&mut self, new: T) {
        *self = match mem::take(self) {
            Few::None => Few::One(new),
            Few::One(first) => Few::Two([first, new]),
            Few::Two([first, second]) => Few::Many(vec![first, second, new]),
            Few::Many(mut all) => {
                all.push(new);
                Few::Many(all)
            }
        };
    }

    pub fn clear(&mut self) {
        self.retain(|_| false);
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        match self {
            Few::None => {}
            Few::One(only) if keep(only) => {}
            Few::Many(all) => all.retain(keep),
            Few::One(_) => *self = Few::None,
            Few::Two([first, second]) => {
                let kept = [keep(first), keep(second)];
                if let Few::Two([first, second]) = mem::take(self) {
                    *self = match kept {
                        [true, true] => Few::Two([first, second]),
                        [true, false] => Few::One(first),
                        [false, true] => Few::One(second),
                        [false, false] => Few::None,
                    };
                }
            }
        }
    }

    /// Removes and returns an element; the last element takes its place.
    pub fn swap_remove(&mut self, index: usize) -> Option<T> {
        match self {
            Few::Many(all) if index < all.len() => Some(all.swap_remove(index)),
            Few::Two(two) if index == 0 => {
                two.swap(0, 1);
                self.pop()
            }
            Few::Two(_) if index == 1 => self.pop(),
            Few::One(_) if index == 0 => self.pop(),
            _ => None,
        }
    }

    pub fn pop(&mut self) -> Option<T> {
        match self {
            Few::Many(all) => all.pop(),
            _ => match mem::take(self) {
                Few::One(only) => Some(only),
                Few::Two([first, second]) => {
                    *self = Few::One(first);
                    Some(second)
                }
                _ => None,
            },
        }
    }

    /// Converts the list into a vector, in order.
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Few::None => Vec::new(),
            Few::One(only) => vec![only],
            Few::Two(two) => two.into(),
            Few::Many(all) => all,
        }
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Few::None => &[],
            Few::One(only) => slice::from_ref(only),
            Few::Two(two) => two,
            Few::Many(all) => all,
        }
    }
}

impl<T> DerefMut for Few<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Few::None => &mut [],
            Few::One(only) => slice::from_mut(only),
            Few::Two(two) => two,
            Few::Many(all) => all,
        }
    }
}

/// Lists with the same elements are equal, independent of the variant.
impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T: Hash> Hash for Few<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut all = all.into_iter();
        let Some(first) = all.next() else { return Few::None };
        let Some(second) = all.next() else { return Few::One(first) };
        let mut few = Few::Two([first, second]);
        all.for_each(|one| few.push(one));
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_list_that_a_vec_would_be() {
        for len in 0..5 {
            let few = || (0..len).collect::<Few<usize>>();
            let all: Vec<usize> = (0..len).collect();
            assert_eq!(*few(), *all);
            assert_eq!(few().into_vec(), all);
            assert_eq!(few().pop(), all.last().copied());
            for gone in 0..5 {
                let (mut few, mut vec) = (few(), all.clone());
                few.retain(|one| *one != gone);
                vec.retain(|one| *one != gone);
                assert_eq!(*few, *vec, "{len} without {gone}");
                few.push(9);
                vec.push(9);
                assert_eq!(*few, *vec, "{len} without {gone} and one more");
            }
            for index in 0..5 {
                let (mut few, mut vec) = (few(), all.clone());
                let gone = (index < len).then(|| vec.swap_remove(index));
                assert_eq!((few.swap_remove(index), &*few), (gone, &*vec));
            }
            let mut none = few();
            none.clear();
            assert!(none.is_empty());
        }
    }

    #[test]
    fn elements_change_in_place() {
        for len in 1..5 {
            let mut few: Few<usize> = (0..len).collect();
            few[len - 1] = 7;
            few.iter_mut().for_each(|one| *one += 1);
            assert_eq!((few.len(), few.last()), (len, Some(&8)));
        }
    }
}
