//! The conformance suite as a program: `conformance [--list] [--skips] [--device NAME]… [FILTER]…` runs the cases whose names
//! contain a FILTER on the host and every driver found, and on every ordered pair that includes a NAME. Exits with 1 if a check
//! failed.
//!
//! Other options are for programs that divide the suite among processes: `onebuf-conformance` is one. With `--lines` each check
//! is one JSON object on a line of its own, and the last line has their number. Errors of usage exit with 2.

mod arguments;
mod print;

use arguments::{Arguments, USAGE, Work};
use onebuf::{Hub, HubBuilder};
use onebuf_conformance::{
    CASES, Machine, Outcome, Side, build_stubs, fakes, hand_overs, large, pairs, run_with,
};
use onebuf_hal::native::panic_text;
use print::{Printer, devices_json};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Duration,
};

/// The APIs that most cases have no kernels for, because those are not written in GLSL.
const SHADER_APIS: [&str; 2] = ["vulkan", "gl"];
/// The timeout of waits. The machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("conformance: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut printer = Printer::new(arguments.lines, arguments.skips);
    // Failures of checks are printed with their devices.
    std::panic::set_hook(Box::new(|_| ()));
    match catch_unwind(AssertUnwindSafe(|| work(&arguments, &mut printer))) {
        Ok(Ok(())) => printer.finish(&arguments.work),
        Ok(Err(why)) => failed(&why),
        Err(panic) => failed(panic_text(&*panic)),
    }
}

/// Reports what prevented the checks.
fn failed(why: &str) -> ExitCode {
    eprintln!("conformance: {why}");
    ExitCode::FAILURE
}

fn work(arguments: &Arguments, printer: &mut Printer) -> Result<(), String> {
    match &arguments.work {
        Work::Help => println!("{USAGE}"),
        Work::List => CASES.iter().for_each(|case| println!("{}", case.name)),
        Work::Stubs(folder) => build_stubs(folder),
        Work::Devices => println!("{}", devices_json(&open(builder(arguments))?)),
        Work::Suite => {
            let hub = || suite_builder(arguments);
            let report = run_with(&hub, &arguments.options, &mut |outcomes| printer.case(outcomes));
            printer.end(&report.outcomes);
        }
        Work::HandOvers(rounds) => {
            let machine = machine(arguments)?;
            let all: Vec<_> = pairs(&machine.sides).collect();
            for (from, to) in all.into_iter().filter(|pair| is_chosen(arguments, pair)) {
                printer.part(hand_overs(&machine, [from, to], *rounds));
            }
        }
        Work::Large(sizes) => {
            let machine = machine(arguments)?;
            let chosen = machine.sides.iter().filter(|side| is_named(arguments, side));
            chosen.for_each(|side| {
                sizes.iter().for_each(|bytes| printer.part(large(side, &[*bytes])));
            });
        }
    }
    Ok(())
}

fn open(builder: HubBuilder) -> Result<Hub, String> {
    builder.build().map_err(|error| error.to_string())
}

fn builder(arguments: &Arguments) -> HubBuilder {
    let builder = onebuf::builder().timeout(PATIENCE);
    let builder = match &arguments.apis {
        Some(apis) => builder.only(apis.iter().map(String::as_str)),
        None => builder,
    };
    match &arguments.cache {
        Some(folder) => builder.cache(folder),
        None => builder.verdicts(Default::default()),
    }
}

fn suite_builder(arguments: &Arguments) -> HubBuilder {
    let builder = builder(arguments);
    let builder = if arguments.shaders { builder } else { builder.without(SHADER_APIS) };
    if arguments.fakes { fakes().into_iter().fold(builder, HubBuilder::fake) } else { builder }
}

/// Opens the named devices; all if none is named.
fn machine(arguments: &Arguments) -> Result<Machine, String> {
    let hub = open(builder(arguments))?;
    let names = &arguments.options.devices;
    if let Some(name) = names.iter().find(|name| hub.device(name).is_err()) {
        return Err(format!("no device fits `{name}`"));
    }
    Ok(Machine::open_some(hub, |device| names.is_empty() || names.iter().any(|n| n == device.id())))
}

fn is_named(arguments: &Arguments, side: &Side) -> bool {
    let names = &arguments.options.devices;
    names.is_empty() || names.iter().any(|name| name == side.device.id())
}

fn is_chosen(arguments: &Arguments, (from, to): &(&Side, &Side)) -> bool {
    is_named(arguments, from) && is_named(arguments, to)
}

/// The case that the outcomes belong to.
pub(crate) fn name(outcomes: &[Outcome]) -> &str {
    outcomes.first().map_or("", |one| one.case)
}
