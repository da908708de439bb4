//! The parameters of kernels, as drivers report them.

/// A parameter of a built kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReflectedParameter {
    /// The declaration in the program's language, for error messages.
    pub written: String,
    /// What it takes.
    pub kind: ParameterKind,
    /// Its type, or the type that it points to, if that is a number or a vector of numbers.
    pub number: Option<NumberType>,
    /// Bytes of the parameter itself, if they are known and `number` may not tell.
    pub bytes: Option<usize>,
    /// Whether the kernel cannot write through it.
    pub reads_only: bool,
}

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// A buffer.
    Buffer,
    /// A value.
    Value,
    /// Group-local memory.
    Local,
    /// An address or a value: the program does not tell.
    Word,
    /// Something else, such as an image.
    Other,
}

/// A number, or a vector of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberType {
    /// Whether it is a floating-point number; else it is an integer, signed or unsigned.
    pub is_float: bool,
    /// Bytes of one number.
    pub bytes: usize,
    /// The number of numbers.
    pub lanes: usize,
}

impl NumberType {
    /// Its size in memory: a vector of three numbers takes the place of four.
    pub fn size(&self) -> usize {
        self.bytes * if self.lanes == 3 { 4 } else { self.lanes }
    }
}

#[cfg(test)]
mod tests {
    use super::NumberType;

    #[test]
    fn a_vector_of_three_takes_the_place_of_four() {
        let size = |bytes, lanes| NumberType { is_float: true, bytes, lanes }.size();
        assert_eq!(
            [size(4, 1), size(4, 2), size(4, 3), size(8, 4), size(2, 16)],
            [4, 8, 16, 32, 32]
        );
    }
}
