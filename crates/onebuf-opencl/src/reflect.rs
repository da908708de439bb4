//! Reading a kernel's parameters back from the driver.

use super::{conv::Version, device::Driver, query};
use bytemuck::Pod;
use onebuf_hal::{NumberType, ParameterKind, ReflectedParameter};
use onebuf_sys::opencl::{ClKernel, consts as cl};

/// The build option with which a driver keeps what [`parameter`] reads.
pub(super) const OPTION: &str = "-cl-kernel-arg-info";

/// Whether the driver can report parameters: since OpenCL 1.2.
pub(super) fn is_there(driver: &Driver) -> bool {
    driver.version >= Version::V1_2 && driver.cl.has_get_kernel_arg_info()
}

/// A parameter of a kernel; `None` if the driver does not report it, as for most binaries.
pub(super) fn parameter(
    driver: &Driver,
    kernel: ClKernel,
    index: usize,
) -> Option<ReflectedParameter> {
    if !is_there(driver) {
        return None;
    }
    let space = ask::<u32>(driver, kernel, index, cl::CL_KERNEL_ARG_ADDRESS_QUALIFIER)?;
    let qualifiers = ask::<u64>(driver, kernel, index, cl::CL_KERNEL_ARG_TYPE_QUALIFIER)?;
    let type_name = text(driver, kernel, index, cl::CL_KERNEL_ARG_TYPE_NAME)?;
    let name = text(driver, kernel, index, cl::CL_KERNEL_ARG_NAME).unwrap_or_default();
    reflected(space, qualifiers, &type_name, &name)
}

fn ask<T: Pod>(driver: &Driver, kernel: ClKernel, index: usize, what: u32) -> Option<T> {
    let answer = query::value(|n, at, len| {
        // SAFETY: a live kernel of a platform that has the call; `query` passes a buffer of the stated length.
        unsafe { driver.cl.get_kernel_arg_info(kernel, index as u32, what, n, at, len) }
    });
    answer.ok()
}

fn text(driver: &Driver, kernel: ClKernel, index: usize, what: u32) -> Option<String> {
    let answer = query::text(|n, at, len| {
        // SAFETY: as for `ask`.
        unsafe { driver.cl.get_kernel_arg_info(kernel, index as u32, what, n, at, len) }
    });
    answer.ok().filter(|text| !text.is_empty())
}

/// A parameter from the driver's answers.
fn reflected(
    space: u32,
    qualifiers: u64,
    type_name: &str,
    name: &str,
) -> Option<ReflectedParameter> {
    let (pointee, is_pointer) = match type_name.strip_suffix('*') {
        Some(pointee) => (pointee.trim_end(), true),
        None => (type_name, false),
    };
    let (kind, before) = match space {
        cl::CL_KERNEL_ARG_ADDRESS_GLOBAL if is_pointer => (ParameterKind::Buffer, "global "),
        cl::CL_KERNEL_ARG_ADDRESS_CONSTANT if is_pointer => (ParameterKind::Buffer, "constant "),
        cl::CL_KERNEL_ARG_ADDRESS_LOCAL if is_pointer => (ParameterKind::Local, "local "),
        cl::CL_KERNEL_ARG_ADDRESS_PRIVATE if !is_pointer => (ParameterKind::Value, ""),
        // Images are in global memory, without being pointers.
        cl::CL_KERNEL_ARG_ADDRESS_GLOBAL => (ParameterKind::Other, ""),
        _ => return None,
    };
    let is_const = is_pointer && qualifiers & cl::CL_KERNEL_ARG_TYPE_CONST != 0;
    let reads_only = is_const || space == cl::CL_KERNEL_ARG_ADDRESS_CONSTANT;
    let (constant, star) =
        (if is_const { "const " } else { "" }, if is_pointer { " *" } else { " " });
    let written = format!("{before}{constant}{pointee}{star}{name}").trim_end().to_owned();
    Some(ReflectedParameter { written, kind, number: number(pointee), bytes: None, reads_only })
}

/// A number or vector type by its name; `None` for structures and names of the program's own.
fn number(name: &str) -> Option<NumberType> {
    let scalar = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let lanes = match &name[scalar.len()..] {
        "" => 1,
        lanes => lanes.parse().ok().filter(|lanes| [2, 3, 4, 8, 16].contains(lanes))?,
    };
    let (is_float, bytes) = match scalar {
        "char" | "uchar" | "signed char" | "unsigned char" => (false, 1),
        "short" | "ushort" | "unsigned short" => (false, 2),
        "int" | "uint" | "unsigned int" | "unsigned" => (false, 4),
        "long" | "ulong" | "unsigned long" => (false, 8),
        "half" => (true, 2),
        "float" => (true, 4),
        "double" => (true, 8),
        _ => return None,
    };
    Some(NumberType { is_float, bytes, lanes })
}

#[cfg(all(test, not(onebuf_shuttle)))]
mod tests {
    use super::*;

    const SPACES: [u32; 4] = [
        cl::CL_KERNEL_ARG_ADDRESS_GLOBAL,
        cl::CL_KERNEL_ARG_ADDRESS_CONSTANT,
        cl::CL_KERNEL_ARG_ADDRESS_LOCAL,
        cl::CL_KERNEL_ARG_ADDRESS_PRIVATE,
    ];

    #[test]
    fn names_of_numbers_and_vectors_are_known() {
        let number = |name| super::number(name).map(|n| (n.is_float, n.bytes, n.lanes, n.size()));
        assert_eq!(number("float"), Some((true, 4, 1, 4)));
        assert_eq!(number("float2"), Some((true, 4, 2, 8)));
        assert_eq!(number("double3"), Some((true, 8, 3, 32)));
        assert_eq!(number("uchar16"), Some((false, 1, 16, 16)));
        assert_eq!(number("unsigned int"), Some((false, 4, 1, 4)));
        for other in [
            "float5",
            "float20",
            "float99999999999999999999",
            "",
            "16",
            "size_t",
            "image2d_t",
            "struct s",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn parameters_are_written_as_in_the_program() {
        let [global, constant, local, private] = SPACES;
        let written = |space, qualifiers, type_name| {
            let parameter = reflected(space, qualifiers, type_name, "x").unwrap();
            (parameter.written, parameter.kind, parameter.reads_only)
        };
        let (buffer, is_const) = (ParameterKind::Buffer, cl::CL_KERNEL_ARG_TYPE_CONST);
        assert_eq!(written(global, 0, "uint*"), ("global uint *x".into(), buffer, false));
        assert_eq!(
            written(global, is_const, "uint *"),
            ("global const uint *x".into(), buffer, true)
        );
        assert_eq!(written(constant, 0, "float4*"), ("constant float4 *x".into(), buffer, true));
        assert_eq!(written(local, 0, "s*"), ("local s *x".into(), ParameterKind::Local, false));
        assert_eq!(
            written(private, is_const, "int"),
            ("int x".into(), ParameterKind::Value, false)
        );
        assert_eq!(written(global, 0, "image2d_t").1, ParameterKind::Other);
        assert_eq!(reflected(private, 0, "uint*", "x"), None, "no kernel takes such a pointer");
        assert_eq!(reflected(7, 0, "uint*", "x"), None, "an unknown address space");
    }
}
