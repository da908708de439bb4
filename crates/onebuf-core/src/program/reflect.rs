//! Comparing a declared signature with the kernel's own parameters, where the driver reports them.

use super::{
    Program, Signature,
    param::{Element, Param},
};
use half::f16;
use num_complex::{Complex32, Complex64};
use onebuf_hal::{self as hal, Error, NumberType, ParameterKind, ReflectedParameter, Result};
use std::any::TypeId;

/// A kernel of a built program, and its parameters as far as the driver reports them.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct ReflectedKernel {
    /// The kernel's name.
    pub name: String,
    /// The parameters; `None` for one that the driver does not report.
    pub parameters: Vec<Option<ReflectedParameter>>,
}

impl Program {
    /// The program's kernels, for front ends whose users do not declare parameters; none if the driver cannot list them.
    #[doc(hidden)]
    pub fn kernels(&self) -> Result<Vec<ReflectedKernel>> {
        let all = self.hal().kernels()?.into_iter();
        let one = |(name, count): (String, usize)| {
            let kernel = self.hal().kernel(&name, count)?;
            let mut parameters: Vec<_> = (0..count).map(|at| kernel.parameter(at)).collect();
            if let Some(spirv) = self.spirv().filter(|_| parameters.contains(&None)) {
                let of_module = onebuf_graft::spirv::parameters(spirv, &name);
                parameters.iter_mut().zip(of_module).for_each(|(to, it)| *to = to.take().or(it));
            }
            Ok(ReflectedKernel { name, parameters })
        };
        all.map(one).collect()
    }
}

/// Checks each declared parameter that the driver reports, or else the program's SPIR-V or PTX.
pub(super) fn check(
    signature: &Signature,
    program: &Program,
    kernel: &dyn hal::Kernel,
) -> Result<()> {
    let reported = |index| kernel.parameter(index);
    let mut found: Vec<_> = (0..signature.params.len()).map(reported).collect();
    if let Some(spirv) = program.spirv().filter(|_| found.contains(&None)) {
        let of_module = onebuf_graft::spirv::parameters(spirv, kernel.name());
        found.iter_mut().zip(of_module).for_each(|(one, other)| *one = one.take().or(other));
    }
    if let Some(without_locals) = without_locals(program, kernel) {
        place(signature, kernel, without_locals, &mut found)?;
    }
    for (index, (param, actual)) in signature.params.iter().zip(found).enumerate() {
        let Some(actual) = actual else { continue };
        if let Some(why) = misdeclared(param, &actual, signature.is_each(index)) {
            let (name, written) = (kernel.name(), &actual.written);
            return Err(Error::invalid(format!(
                "parameter {index} of kernel `{name}` is `{written}` in the program, and declared as {param}: {why}"
            )));
        }
    }
    Ok(())
}

/// The parameters of a kernel for which group-local memory is no parameter: from its PTX, or else their sizes from the driver.
fn without_locals(program: &Program, kernel: &dyn hal::Kernel) -> Option<Vec<ReflectedParameter>> {
    let of_text = program.hal().image().and_then(|image| {
        // The text may be in memory that the driver has not checked: its parameters may not be understood.
        onebuf_graft::ptx_parameters(image, kernel.name())
    });
    let of_bytes = |bytes: &usize| ReflectedParameter {
        written: format!("{bytes} bytes"),
        kind: if *bytes == ADDRESS_BYTES { ParameterKind::Word } else { ParameterKind::Value },
        number: None,
        bytes: Some(*bytes),
        reads_only: false,
    };
    of_text.or_else(|| Some(kernel.parameter_bytes()?.iter().map(of_bytes).collect()))
}

/// Bytes of an address on a device.
const ADDRESS_BYTES: usize = 8;

/// Puts parameters at the places of those declared, except group-local memory, after checking their number.
fn place(
    signature: &Signature,
    kernel: &dyn hal::Kernel,
    actual: Vec<ReflectedParameter>,
    found: &mut [Option<ReflectedParameter>],
) -> Result<()> {
    let is_local = |param: &Param| matches!(param, Param::Local(_));
    let takes_local = actual.iter().any(|param| param.kind == ParameterKind::Local);
    let places = signature.params.iter().zip(found).filter(|(p, _)| takes_local || !is_local(p));
    let places: Vec<_> = places.map(|(_, place)| place).collect();
    let (have, want, name) = (places.len(), actual.len(), kernel.name());
    if have != want {
        return Err(Error::invalid(format!(
            "kernel `{name}` takes {want} arguments besides local memory, {have} are declared"
        )));
    }
    places.into_iter().zip(actual).for_each(|(place, actual)| *place = Some(actual));
    Ok(())
}

/// Why the declaration contradicts the parameter, if it does. Buffers of bytes may be anything: callers that do not know the kernel
/// declare them, to read and to write.
fn misdeclared(param: &Param, actual: &ReflectedParameter, is_each: bool) -> Option<&'static str> {
    let (kind, element) = match param {
        Param::Buffer { element, .. } => (ParameterKind::Buffer, element),
        Param::Value(element) => (ParameterKind::Value, element),
        Param::Local(element) => (ParameterKind::Local, element),
    };
    let is_word = actual.kind == ParameterKind::Word && kind != ParameterKind::Local;
    if kind != actual.kind && !is_word {
        return Some("the two are of different kinds");
    }
    let writes = matches!(param, Param::Buffer { access, .. } if access.writes());
    if writes && actual.reads_only && element.id() != TypeId::of::<u8>() {
        return Some("the kernel only reads it");
    }
    // What a word points to is not known.
    let number = actual.number.filter(|_| kind == ParameterKind::Value || !is_word);
    // A program without vectors takes them as one number.
    let packed = |declared: &NumberType| declared.lanes > 1 && actual.bytes.is_some();
    let declared = declared_number(element).filter(|declared| !packed(declared));
    if declared.zip(number).is_some_and(|(declared, number)| !is_same_number(&declared, &number)) {
        return Some("the two have different types");
    }
    let have = element.bytes();
    let want = number.map(|number| number.size());
    if kind == ParameterKind::Value {
        let differs = actual.bytes.or(want).is_some_and(|want| have != want);
        return differs.then_some("the two have different sizes");
    }
    let want = want?;
    match kind {
        ParameterKind::Buffer | ParameterKind::Local if is_each && have < want => {
            Some("an element for each work-item would be too small")
        }
        _ => None,
    }
}

/// Whether numbers of one type can be seen as the other. Signs are not compared, and bytes may be anything.
fn is_same_number(declared: &NumberType, actual: &NumberType) -> bool {
    let is_byte = declared.bytes == 1;
    is_byte || (declared.bytes, declared.is_float) == (actual.bytes, actual.is_float)
}

/// The number type of an element; `None` for a structure, and for bytes of an unknown type.
fn declared_number(element: &Element) -> Option<NumberType> {
    fn of<T: 'static>(id: TypeId, is_float: bool) -> Option<NumberType> {
        let ids = [
            (TypeId::of::<T>(), 1),
            (TypeId::of::<[T; 2]>(), 2),
            (TypeId::of::<[T; 3]>(), 3),
            (TypeId::of::<[T; 4]>(), 4),
            (TypeId::of::<[T; 8]>(), 8),
            (TypeId::of::<[T; 16]>(), 16),
        ];
        let (_, lanes) = ids.into_iter().find(|(known, _)| *known == id)?;
        Some(NumberType { is_float, bytes: size_of::<T>(), lanes })
    }
    let id = element.id();
    if id == TypeId::of::<Complex32>() {
        return Some(NumberType { is_float: true, bytes: 4, lanes: 2 });
    }
    if id == TypeId::of::<Complex64>() {
        return Some(NumberType { is_float: true, bytes: 8, lanes: 2 });
    }
    let integers =
        [of::<u8>, of::<i8>, of::<u16>, of::<i16>, of::<u32>, of::<i32>, of::<u64>, of::<i64>];
    let floats = [of::<f16>, of::<f32>, of::<f64>];
    let integer = integers.into_iter().find_map(|of| of(id, false));
    integer.or_else(|| floats.into_iter().find_map(|of| of(id, true)))
}
