//! One buffer, two processes: every page from both sides, and the state after one of them dies.
//!
//! The second process is this test program again; its environment selects the part to play.

mod device;
mod ipc;

use onebuf::{
    Buffer, BufferBuilder, CopyPolicy, Error, Hub, MemoryKind, Result, RouteKind,
    peer::{Attach, Attached, Offer, Visit},
};
use onebuf_conformance::{Side, Step, absent, note, pages_apart, step_model};
use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);

/// The part to play, the socket, and the device of the second process.
const PART: &str = "ONEBUF_TEST_PEER";
const SOCKET: &str = "ONEBUF_TEST_SOCKET";
const DEVICE: &str = "ONEBUF_TEST_DEVICE";

/// 16 MiB and a little: whole pages, and a partial last one.
const N: usize = (4 << 20) + 300;

/// One test at a time, because descriptors are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    environment();
    alone
}

/// The environment before the first driver was loaded: the Khronos loader cuts the list of OpenCL drivers in it.
fn environment() -> &'static [(OsString, OsString)] {
    static BEFORE: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();
    BEFORE.get_or_init(|| std::env::vars_os().collect())
}

fn hub() -> Hub {
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30));
    builder.without(["cuda", "hip"]).copies(CopyPolicy::Allow).build().expect("the host")
}

/// A hub with every API, for device memory.
fn whole_hub() -> Hub {
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30));
    builder.build().expect("the host")
}

fn open_fds() -> usize {
    fs::read_dir("/proc/self/fd").expect("this process").count()
}

/// The pattern that both sides compute: every word differs in every round.
fn pattern(session: u64, round: u64, n: usize) -> Vec<u32> {
    let seed =
        (session as u32).wrapping_mul(0x9e37_79b9) ^ (round as u32).wrapping_mul(0x85eb_ca6b);
    (0..n as u32).map(|i| (i ^ seed).wrapping_mul(0x2c1b_3c6d)).collect()
}

/// How one process writes and reads the buffer: by the host, or by a device.
struct Hands {
    side: Option<Side>,
    /// The device's route to the pages: in place, or a replica. `None` for device memory.
    route: Option<RouteKind>,
    on_device: bool,
    /// Candidates to import the owner's memory if the side's own device has a replica; they must be named too.
    takes: Vec<onebuf::Device>,
}

/// Suffix of a device name: the device gets a replica.
const STAGED: &str = "+staged";
/// Suffix of a device name: the device accesses device memory without a copy.
const ON_DEVICE: &str = "+device";
/// Suffix of a device name: the device gets a replica of another device's memory.
const ACROSS: &str = "+across";

impl Hands {
    fn open(hub: &Hub, device: &str) -> Result<Self> {
        let (device, sort) = device.split_at(device.find('+').unwrap_or(device.len()));
        let (route, on_device) = match sort {
            STAGED => (Some(RouteKind::Staged), false),
            ON_DEVICE => (None, true),
            ACROSS => (Some(RouteKind::Staged), true),
            _ => (Some(RouteKind::HostPointer), false),
        };
        let side = match device {
            "host" => None,
            other => Some(Side::open(&hub.device(other)?)?),
        };
        let api = side.as_ref().filter(|_| sort == ACROSS).map(|side| side.device.info().api);
        let mut takes = hub.devices();
        takes.retain(|device| Some(device.info().api) == api);
        Ok(Self { side, route, on_device, takes })
    }

    fn builder<'w>(&self, builder: BufferBuilder<'w, u32>) -> BufferBuilder<'w, u32> {
        let builder = builder.shared_with(self.side.iter().map(|side| &side.device));
        let builder = builder.shared_with(&self.takes);
        match self.route {
            None => builder.copies(CopyPolicy::Forbid),
            Some(route) if self.side.is_some() => builder.route(route).trust_declared(true),
            Some(_) => builder,
        }
    }

    /// Asserts that the device accesses the buffer by the intended route.
    fn assert_route(&self, buffer: &Buffer<u32>) {
        let plan = buffer.plan();
        let on_device = matches!(plan.memory_kind, MemoryKind::Exportable | MemoryKind::Device);
        assert_eq!(self.on_device, on_device, "{}", buffer.explain());
        if let Some(side) = &self.side {
            let to = side.device.index();
            let hop = plan.routes.iter().find(|hop| hop.to == to).expect("planned");
            let right = self.route.map_or(hop.kind != RouteKind::Staged, |route| hop.kind == route);
            assert!(right, "{}", buffer.explain());
        }
    }

    /// Writes by a kernel if there is a device: `x * mul + add + i` of what the host wrote first.
    fn write(&self, buffer: &Buffer<u32>, session: u64, round: u64) -> Result<()> {
        buffer.write(&pattern(session, round, buffer.len()))?;
        match &self.side {
            Some(side) => side.step(buffer, Step::nth(round as u32)),
            None => {
                let mut all = buffer.to_vec()?;
                step_model(&mut all, Step::nth(round as u32));
                buffer.write(&all)
            }
        }
    }

    /// Counts the pages that differ from what the other process wrote, as this side's device sees them.
    fn wrong_pages(&self, buffer: &Buffer<u32>, session: u64, round: u64) -> Result<usize> {
        let mut want = pattern(session, round, buffer.len());
        step_model(&mut want, Step::nth(round as u32));
        let seen = match &self.side {
            Some(side) => side.look(buffer)?,
            None => buffer.to_vec()?,
        };
        Ok(pages_apart(&seen, &want).len())
    }
}

/// The second process: not a test, unless the environment selects a part.
#[test]
fn second_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let socket = std::env::var(SOCKET).expect("where to attach");
    let device = std::env::var(DEVICE).expect("with which device");
    match play(&part, &socket, &device) {
        Ok(()) => println!("\nplayed {part}"),
        Err(error) => println!("\nerror: {error}"),
    }
}

fn play(part: &str, socket: &str, device: &str) -> Result<()> {
    let whole = device.ends_with(ON_DEVICE) || device.ends_with(ACROSS);
    let hub = if whole { whole_hub() } else { hub() };
    let hands = Hands::open(&hub, device)?;
    let attach = Attach::to(socket).timeout(SOON);
    let attach = match std::env::var("ONEBUF_TEST_TRUST") {
        Ok(uid) => attach.allow_uid(uid.parse().expect("a user")),
        Err(_) => attach,
    };
    let mut attached = attach.open::<u32>(&hub, |builder| hands.builder(builder))?;
    hands.assert_route(attached.buffer());
    attached.wait(SOON)?;
    match part {
        "rounds" => {
            rounds(&hands, attached)?;
            println!("\ncopied: {}", hub.ledger().implied_bytes());
            Ok(())
        }
        // Uses a separate buffer instead, which must be detected.
        "apart" => {
            let own = hub.buffer::<u32>(attached.buffer().len());
            let own = own.shared_with(hands.side.iter().map(|side| &side.device)).build()?;
            let wrong = hands.wrong_pages(&own, attached.session(), attached.round())?;
            println!("\nwrong pages: {wrong}");
            hands.write(&own, attached.session(), attached.round() + 1)?;
            attached.hand_over()?;
            attached.wait(SOON)
        }
        "writes for ever" => {
            println!("\nwriting");
            let all = vec![0xffff_ffff; attached.buffer().len()];
            loop {
                attached.buffer().write(&all)?;
            }
        }
        other => panic!("no part `{other}`"),
    }
}

/// Checks and writes until the owner leaves.
fn rounds(hands: &Hands, mut attached: Attached<u32>) -> Result<()> {
    let mut wrong = 0;
    loop {
        let (session, round) = (attached.session(), attached.round());
        wrong += hands.wrong_pages(attached.buffer(), session, round)?;
        hands.write(attached.buffer(), session, round + 1)?;
        attached.hand_over()?;
        match attached.wait(SOON) {
            Err(Error::PeerLost { .. }) if attached.has_left() => break,
            outcome => outcome?,
        }
    }
    println!("\nwrong pages: {wrong}");
    Ok(())
}

struct Stage {
    folder: TempDir,
}

impl Stage {
    fn new() -> Self {
        let rights = fs::Permissions::from_mode(0o700);
        let folder = tempfile::Builder::new().permissions(rights).tempdir().expect("a folder");
        Self { folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("buffer.sock")
    }

    fn command(&self, part: &str, device: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "second_process", "--nocapture", "--test-threads=1"]);
        command.env_clear().envs(environment().iter().cloned());
        command.env(PART, part).env(SOCKET, self.socket()).env(DEVICE, device);
        command.stdout(Stdio::piped());
        command
    }

    fn spawn(&self, part: &str, device: &str) -> Second {
        Second(self.command(part, device).spawn().expect("it starts"))
    }
}

/// The other process; killed at the end of the test.
struct Second(Child);

impl Second {
    /// Returns the rest of its output line with that beginning.
    fn says(&mut self, beginning: &str) -> String {
        let out = self.0.stdout.as_mut().expect("piped");
        let mut heard = String::new();
        // Reads not a byte beyond the line, because the rest is for the next call.
        for line in BufReader::with_capacity(1, out).lines().map_while(|line| line.ok()) {
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
            heard += &line;
            heard.push('\n');
        }
        panic!("it never said `{beginning}`:\n{heard}");
    }

    /// Fails with the error of this process, and everything that the other one says.
    fn failed(&mut self, error: &Error) -> ! {
        let _ = self.0.kill();
        let mut heard = String::new();
        let _ = self.0.stdout.as_mut().expect("piped").read_to_string(&mut heard);
        panic!("{error}; the second process:\n{heard}");
    }

    fn kill(&mut self) {
        self.0.kill().expect("it lives"); // SIGKILL
        self.0.wait().expect("it ends");
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A buffer in host pages, with the owner's device.
fn buffer(hub: &Hub, hands: &Hands) -> Buffer<u32> {
    let builder = hands.builder(hub.buffer::<u32>(N));
    let builder = builder.memory_kind(onebuf::MemoryKind::HostPages).allocate_on(&hub.host());
    let buffer = builder.build().expect("host pages");
    hands.assert_route(&buffer);
    buffer
}

/// The owner's rounds; returns the number of wrong pages.
fn own_rounds(hands: &Hands, visit: &mut Visit<'_, '_, u32>, many: usize) -> Result<usize> {
    let mut wrong = 0;
    for _ in 0..many {
        let (session, round) = (visit.session(), visit.round());
        hands.write(visit.buffer(), session, round + 1)?;
        visit.hand_over()?;
        visit.wait(SOON)?;
        wrong += hands.wrong_pages(visit.buffer(), session, round + 2)?;
    }
    Ok(wrong)
}

/// The participants: the host, and PoCL if available, in place and with replicas.
fn devices(hub: &Hub) -> Vec<String> {
    let pocl = hub.select("Portable Computing Language");
    if pocl.is_empty() {
        absent("PoCL", "no device of this platform");
    }
    let first = pocl.iter().take(1).map(|device| device.id().to_owned());
    let both = first.flat_map(|id| [id.clone() + STAGED, id]);
    std::iter::once("host".to_owned()).chain(both).collect()
}

#[test]
fn every_page_from_both_sides() {
    let _alone = alone();
    let hub = hub();
    for mine in devices(&hub) {
        for theirs in devices(&hub) {
            let (stage, hands) = (Stage::new(), Hands::open(&hub, &mine).unwrap());
            let buffer = buffer(&hub, &hands);
            let mut offer = Offer::open(&buffer, stage.socket().to_str().unwrap()).unwrap();
            let mut second = stage.spawn("rounds", &theirs);
            let mut visit = offer.accept(SOON).unwrap_or_else(|error| second.failed(&error));
            assert_eq!(visit.peer().pid, second.0.id());
            assert_eq!(own_rounds(&hands, &mut visit, 3).unwrap(), 0, "{mine} <- {theirs}");
            drop(visit);
            assert_eq!(second.says("wrong pages:"), "0", "{mine} -> {theirs}");
        }
    }
}

/// The control: a second process with separate memory finds every page wrong, and so does the owner.
#[test]
fn two_memories_are_found_out() {
    let _alone = alone();
    let (hub, stage) = (hub(), Stage::new());
    let hands = Hands::open(&hub, "host").unwrap();
    assert_found_out(&stage, &hands, &buffer(&hub, &hands), "host");
}

/// Asserts that both processes find every page wrong if the second one uses separate memory.
fn assert_found_out(stage: &Stage, hands: &Hands, buffer: &Buffer<u32>, theirs: &str) {
    let mut offer = Offer::open(buffer, stage.socket().to_str().unwrap()).unwrap();
    let mut second = stage.spawn("apart", theirs);
    let mut visit = offer.accept(SOON).unwrap();
    let pages = (buffer.len() * 4).div_ceil(4096);
    assert_eq!(own_rounds(hands, &mut visit, 1).unwrap(), pages);
    drop(visit);
    assert_eq!(second.says("wrong pages:"), pages.to_string());
}

/// With two offers, two peers could have their turn at once.
#[test]
fn a_buffer_is_offered_once() {
    let _alone = alone();
    let (hub, stage, other) = (hub(), Stage::new(), Stage::new());
    let buffer = buffer(&hub, &Hands::open(&hub, "host").unwrap());
    let offer = Offer::open(&buffer, stage.socket().to_str().unwrap()).unwrap();
    let again = Offer::open(&buffer, other.socket().to_str().unwrap());
    assert!(matches!(again, Err(Error::Busy { .. })), "{again:?}");
    drop((again, offer));
    drop(Offer::open(&buffer, other.socket().to_str().unwrap()).unwrap());
}

#[test]
fn a_killed_peer_is_lost_and_the_buffer_lives_on() {
    let _alone = alone();
    let (hub, stage) = (hub(), Stage::new());
    for device in devices(&hub) {
        let hands = Hands::open(&hub, &device).unwrap();
        let buffer = buffer(&hub, &hands);
        let mut offer = Offer::open(&buffer, stage.socket().to_str().unwrap()).unwrap();
        let mut fds = Vec::new();
        for round in 0..4 {
            let mut second = stage.spawn("writes for ever", &device);
            let mut visit = offer.accept(SOON).unwrap_or_else(|error| second.failed(&error));
            buffer.fill(7).unwrap();
            visit.hand_over().unwrap();
            assert_eq!(second.says("writing"), "");
            assert!(matches!(buffer.to_vec(), Err(Error::Busy { .. })));
            second.kill();
            // Not `Timeout`: the waiter gets the error immediately.
            let error = visit.wait(Duration::from_secs(10)).unwrap_err();
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
            assert!(!visit.has_left());
            drop(visit);
            // Some words may be the peer's, but each is one that either side wrote.
            let all = buffer.to_vec().unwrap();
            assert!(all.iter().all(|&word| word == 7 || word == u32::MAX), "round {round}");
            hands.write(&buffer, 1, 2).unwrap();
            assert_eq!(hands.wrong_pages(&buffer, 1, 2).unwrap(), 0, "round {round}");
            drop(second);
            fds.push(open_fds());
        }
        // A driver may close some of its own in the meantime.
        assert!(fds[2..].iter().all(|&count| count <= fds[1]), "fds leak on {device}: {fds:?}");
    }
}

#[test]
fn an_owner_that_hands_over_to_the_dead_keeps_its_turn() {
    let _alone = alone();
    let (hub, stage) = (hub(), Stage::new());
    let buffer = buffer(&hub, &Hands::open(&hub, "host").unwrap());
    let mut offer = Offer::open(&buffer, stage.socket().to_str().unwrap()).unwrap();
    let mut second = stage.spawn("rounds", "host");
    let mut visit = offer.accept(SOON).unwrap();
    second.kill();
    let error = visit.hand_over().unwrap_err();
    assert!(matches!(error, Error::PeerLost { .. }), "{error}");
    buffer.fill(1).unwrap();
}

#[test]
fn many_peers_one_after_another() {
    let _alone = alone();
    let (hub, stage) = (hub(), Stage::new());
    let hands = Hands::open(&hub, "host").unwrap();
    let buffer = hub.buffer::<u32>(5000).build().unwrap();
    let mut offer = Offer::open(&buffer, stage.socket().to_str().unwrap()).unwrap();
    let mut fds = Vec::new();
    for number in 0..12 {
        let mut second = stage.spawn("rounds", "host");
        let mut visit = offer.accept(SOON).unwrap();
        assert_eq!(own_rounds(&hands, &mut visit, 2).unwrap(), 0, "peer {number}");
        drop(visit);
        assert_eq!(second.says("wrong pages:"), "0", "peer {number}");
        drop(second);
        fds.push(open_fds());
    }
    // A driver may close some of its own meanwhile.
    assert!(fds.iter().skip(2).all(|&count| count <= fds[1]), "fds leak: {fds:?}");
}

/// Needs root, to run as two users.
#[test]
fn another_user_is_refused_unless_allowed() {
    let _alone = alone();
    const NOBODY: u32 = 65534;
    // The owner of a new file is this process's user.
    let mine = fs::metadata(Stage::new().folder.path()).map(|meta| {
        use std::os::unix::fs::MetadataExt;
        meta.uid()
    });
    if mine.unwrap() != 0 {
        return note("skip: two users: not running as root");
    }
    let (hub, stage) = (hub(), Stage::new());
    let hands = Hands::open(&hub, "host").unwrap();
    let buffer = hub.buffer::<u32>(5000).build().unwrap();
    // The other user must be allowed to run the program.
    let program = stage.folder.path().join("second");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let spawn = |trust: &str| {
        let open = |path: PathBuf, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        // The folder was private when it was checked and is opened now, so that only the check of the user is left.
        open(stage.folder.path().into(), 0o711);
        open(stage.socket(), 0o777);
        open(program.clone(), 0o755);
        let mut command = Command::new(&program);
        command.args(["--exact", "second_process", "--nocapture", "--test-threads=1"]);
        command.env(PART, "rounds").env(SOCKET, stage.socket()).env(DEVICE, "host");
        command.env("ONEBUF_OPENCL_LIB", "none").env("ONEBUF_TEST_TRUST", trust);
        command.current_dir("/").uid(NOBODY).stdout(Stdio::piped());
        Second(command.spawn().expect("it starts"))
    };
    let close = || {
        let closed = fs::Permissions::from_mode(0o700);
        fs::set_permissions(stage.folder.path(), closed).unwrap();
    };

    let mut offer = Offer::open(&buffer, stage.socket().to_str().unwrap()).unwrap();
    let mut second = spawn("0");
    let error = offer.accept(SOON).map(drop).unwrap_err();
    assert!(matches!(error, Error::PeerRefused { .. }), "{error}");
    assert!(error.to_string().contains("user 65534"), "{error}");
    let told = second.says("error:");
    assert!(told.contains("the peer process is gone"), "{told}");
    drop(offer);

    close();
    let mut offer = Offer::open(&buffer, stage.socket().to_str().unwrap()).unwrap();
    // In the other direction: the client does not trust an owner of another user either.
    let mut second = spawn("1");
    assert!(second.says("error:").contains("user 0"));
    offer = offer.allow_uid(NOBODY);
    offer.accept(SOON).map(drop).unwrap_err();
    let mut second = spawn("0");
    let mut visit = offer.accept(SOON).unwrap();
    assert_eq!(visit.peer().uid, NOBODY);
    assert_eq!(own_rounds(&hands, &mut visit, 1).unwrap(), 0);
    drop(visit);
    assert_eq!(second.says("wrong pages:"), "0");
}
