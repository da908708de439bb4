//! The `onebuf` program: lists devices, proves routes between them, and measures.
#![deny(unsafe_code)]

mod attach;
mod bench;
mod cache;
mod demo;
mod devices;
mod doctor;
mod html;
mod network;
mod out;
mod plan;
mod screen;
mod send;
mod share;
mod table;
mod top;
mod turns;
mod units;
mod version;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use clap_complete::Shell;
use out::{Answer, Output, Result};
use screen::Screen;
use serde_json::json;
use std::process::ExitCode;
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// One buffer, every compute API: lists devices, proves which routes between them work, and measures them.
#[derive(Parser)]
#[command(name = "onebuf", disable_version_flag = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  onebuf devices                  list devices and unavailable APIs
  onebuf doctor                   prove every route by experiment; verdicts are stored
  onebuf plan --devices opencl:0,opencl:1 --forbid-copies --explain
  onebuf demo                     a transform on one device, a matrix product on another, one buffer
  onebuf send --to udp:HOST:5000  send frames to a listening pipeline
  onebuf network                  check this machine's settings for 100 Gb/s
  onebuf share --name frames      share a buffer with another process: `onebuf attach frames`
  onebuf top                      live view of a running program: buffers, routes, fences, copies, pipelines
  onebuf bench                    measure onebuf against raw C calls and staged copies

Exit status: 0 success; 1 failure, with the reason on stderr; 2 wrong usage.
ONEBUF_LOG filters the log on stderr (ONEBUF_LOG=debug, ONEBUF_LOG=warn,onebuf::pipeline=debug); NO_COLOR disables colour.")]
struct Cli {
    /// Print one JSON object on stdout, and nothing else there
    #[arg(long, global = true, display_order = 100)]
    json: bool,
    /// Print the version and the drivers found
    #[arg(short = 'V', long)]
    version: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    Devices(devices::DevicesArgs),
    Doctor(doctor::DoctorArgs),
    Plan(plan::PlanArgs),
    Demo(demo::DemoArgs),
    Send(send::SendArgs),
    Network(network::NetworkArgs),
    Bench(bench::BenchArgs),
    Share(share::ShareArgs),
    Attach(attach::AttachArgs),
    Top(top::TopArgs),
    Cache(cache::CacheArgs),
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  onebuf completions bash > ~/.local/share/bash-completion/completions/onebuf
  onebuf completions fish > ~/.config/fish/completions/onebuf.fish")]
    Completions {
        /// The shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    // The doctor tests each route in a helper process, and this program is that helper too.
    onebuf::doctor::helper_main(onebuf::builder());
    let cli = Cli::parse();
    log_to_stderr();
    if let Err(error) = onebuf::peer::remove_sockets_on_signals() {
        out::warn(format!("sockets will not be removed if a signal ends this program: {error}"));
    }
    match answer(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("onebuf: {}", out::shown(&failure.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn answer(cli: &Cli) -> Result<()> {
    let output = Output::open(cli.json)?;
    let screen = Screen::of_stdout();
    let answer = match &cli.command {
        _ if cli.version => version::run(&output)?,
        Some(Command::Devices(_)) => devices::run(screen)?,
        Some(Command::Doctor(args)) if args.is_of_mpi() => return doctor::run_mpi(args, output),
        Some(Command::Doctor(args)) => doctor::run(args, screen)?,
        Some(Command::Plan(args)) => plan::run(args, screen)?,
        Some(Command::Demo(args)) => return demo::run(args, screen, output),
        Some(Command::Send(args)) => send::run(args)?,
        Some(Command::Network(args)) => return network::run(args, screen, output),
        Some(Command::Bench(args)) => return bench::run(args, screen, output),
        Some(Command::Share(args)) => share::run(args, &output)?,
        Some(Command::Attach(args)) => attach::run(args, &output)?,
        Some(Command::Top(args)) => top::run(args, &output, screen)?,
        Some(Command::Cache(args)) => cache::run(args)?,
        Some(Command::Completions { shell }) => completions(*shell),
        None => Cli::command().error(ErrorKind::MissingSubcommand, "name a command").exit(),
    };
    output.give(answer)
}

fn completions(shell: Shell) -> Answer {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "onebuf", &mut script);
    let text = String::from_utf8_lossy(&script).into_owned();
    Answer { json: json!({ "shell": shell.to_string(), "script": text }), text }
}

/// The default log filter: errors, and warnings that no command prints itself (driver calls that hang, pipelines that
/// fall back to one thread).
const LOG_BY_DEFAULT: &str = "error,onebuf::watchdog=warn,onebuf::pipeline=warn";

fn log_to_stderr() {
    let asked = std::env::var("ONEBUF_LOG").ok().filter(|filter| !filter.is_empty());
    let (filter, refused) = log_filter(asked.as_deref());
    // Without colours, so that the log reads the same in a file.
    let log = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(log).with(filter).init();
    if let Some(why) = refused {
        out::warn(format_args!("ONEBUF_LOG is invalid and ignored: {why}"));
    }
}

/// The log filter, and why `asked` is not used if it is invalid.
fn log_filter(asked: Option<&str>) -> (Targets, Option<String>) {
    match asked.unwrap_or(LOG_BY_DEFAULT).parse() {
        Ok(filter) => (filter, None),
        Err(error) => {
            let by_default = LOG_BY_DEFAULT.parse().expect("a filter of our own");
            (by_default, Some(format!("{error}")))
        }
    }
}
