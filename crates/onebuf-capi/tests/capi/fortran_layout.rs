//! The generated Fortran interface agrees with the C compiler: constants, sizes and offsets. Every function is in the library.

use crate::{
    declarations::{Declaration, Function, Variable},
    fortran::BOTH,
    fortran_header::Interface,
    support::{Build, command, compile, said, workshop},
};
use std::{fs, path::PathBuf};

/// Lines of a program in each language that print the same.
#[derive(Default)]
struct Programs {
    c: String,
    fortran: String,
}

impl Programs {
    fn of(interface: &Interface) -> Self {
        let mut programs = Self::default();
        for declaration in interface.all() {
            match declaration {
                Declaration::Constant { name, .. } => programs.constant(name),
                Declaration::Structure { name, fields, .. } => {
                    programs.structure(name, &interface.structure_name(name), fields);
                }
                Declaration::Function(Function { name, .. }) => programs.function(name),
                Declaration::Alias { .. } | Declaration::Callback(_) => {}
            }
        }
        programs
    }

    fn constant(&mut self, name: &str) {
        // The same bits: Fortran has no unsigned integers.
        let bits = format!("sizeof {name} == 4 ? (long long)(int32_t){name} : (long long){name}");
        self.c += &format!("    printf(\"{name} %lld\\n\", {bits});\n");
        self.fortran += &format!("  call say('{name}', int({name}, int64))\n");
    }

    fn structure(&mut self, name: &str, fortran: &str, fields: &[Variable]) {
        self.c += &format!("    printf(\"{name} %lld\\n\", (long long)sizeof({name}));\n");
        self.fortran += &format!(
            "  block\n    type({fortran}), target :: it\n    call say('{name}', int(storage_size(it)/8, int64))\n"
        );
        for Variable { name: field, .. } in fields {
            let of = format!("(({name} *)0)->{field}");
            self.c += &format!(
                "    printf(\"{name}.{field} %lld\\n\", (long long)offsetof({name}, {field}));\n    \
                 printf(\"{name}.{field} %lld\\n\", (long long)sizeof({of}));\n"
            );
            self.fortran += &format!(
                "    call field('{name}.{field}', c_loc(it), c_loc(it%{field}), &\n      \
                 storage_size(it%{field}), shape(it%{field}))\n"
            );
        }
        self.fortran += "  end block\n";
    }

    fn function(&mut self, name: &str) {
        self.c += &format!("    printf(\"{name} %lld\\n\", (long long)({name} != NULL));\n");
        self.fortran += &format!("  call there('{name}', c_funloc({name}))\n");
    }

    fn c(&self) -> String {
        // The address of a function is never NULL, and compilers say so.
        let head = "#include <onebuf.h>\n#include <stdio.h>\n#pragma GCC diagnostic ignored \"-Waddress\"\n";
        format!("{head}\nint main(void) {{\n{}}}\n", self.c)
    }

    fn fortran(&self) -> String {
        let head = "program layout\n  use, intrinsic :: iso_fortran_env, only: int64\n  use onebuf_c\n  implicit none\n\n";
        let tail = "
contains

  ! Prints the offset and the size of a component.
  subroutine field(name, start, address, bits, extents)
    character(*), intent(in) :: name
    type(c_ptr), intent(in) :: start, address
    integer, intent(in) :: bits, extents(:)

    call say(name, int(transfer(address, 0_c_intptr_t) - transfer(start, 0_c_intptr_t), int64))
    call say(name, int(bits/8*product(extents), int64))
  end subroutine

  ! Prints whether a function has an address.
  subroutine there(name, address)
    character(*), intent(in) :: name
    type(c_funptr), intent(in) :: address

    call say(name, merge(1_int64, 0_int64, c_associated(address)))
  end subroutine

  subroutine say(name, number)
    character(*), intent(in) :: name
    integer(int64), intent(in) :: number

    print '(a, 1x, i0)', name, number
  end subroutine
end program
";
        format!("{head}{}{tail}", self.fortran)
    }
}

fn written(name: &str, text: &str) -> PathBuf {
    let file = workshop().join(name);
    fs::write(&file, text).expect("a program");
    file
}

#[test]
fn the_fortran_interface_agrees_with_c() {
    let programs = Programs::of(&Interface::new());
    let Some(c) = compile(&written("layout_c.c", &programs.c()), Build::Shared, &[]) else {
        return;
    };
    let of_c = said(command(&c));
    assert!(of_c.lines().count() > 900, "{} lines", of_c.lines().count());
    let source = written("layout_f.f90", &programs.fortran());
    for how in BOTH {
        let Some(program) = how.program(source.to_str().expect("a path")) else { continue };
        let of_fortran = said(command(&program));
        let differs = of_c.lines().zip(of_fortran.lines()).find(|(c, fortran)| c != fortran);
        assert_eq!(differs, None, "C says the first, Fortran the second");
        assert_eq!(of_c.lines().count(), of_fortran.lines().count());
    }
}
