//! One buffer, two processes: every page from both sides, and what is left when one of them dies.
//!
//! The second process is this test program again, told by its environment which part to play.

mod device;
mod ipc;

use onebuf::{
    Buffer, BufferBuilder, CopyPolicy, Error, Hub, MemoryKind, Result, RouteKind,
    peer::{Attach, Attached, Offer, Visit},
};
use onebuf_conformance::{Side, Step, absent, note, pages_apart, step_model};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(60);

/// A part to play, the socket, and the device of the second process.
const PART: &str = "ONEBUF_TEST_PEER";
const SOCKET: &str = "ONEBUF_TEST_SOCKET";
const DEVICE: &str = "ONEBUF_TEST_DEVICE";

/// 16 MiB and a little: whole pages, and a last one that is not.
const N: usize = (4 << 20) + 300;

/// Fds are counted, so one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hub() -> Hub {
    let builder = onebuf::builder()
        .without(["vulkan", "gl"])
        .verdicts(Default::default())
        .timeout(Duration::from_secs(30));
    builder.without(["cuda", "hip"]).copies(CopyPolicy::Allow).build().expect("the host")
}

/// With every API, for device memory.
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

/// What both sides know: every word is different in every round.
fn pattern(session: u64, round: u64, n: usize) -> Vec<u32> {
    let seed =
        (session as u32).wrapping_mul(0x9e37_79b9) ^ (round as u32).wrapping_mul(0x85eb_ca6b);
    (0..n as u32).map(|i| (i ^ seed).wrapping_mul(0x2c1b_3c6d)).collect()
}

/// One process's way to write the buffer and to look at it: the host's, or a device's own.
struct Hands {
    side: Option<Side>,
    /// How the device sees the pages: in place, or as a copy of its own. None for device memory.
    route: Option<RouteKind>,
    on_device: bool,
    /// Those of which one takes the owner's memory, where the side's own has a copy: it has to be named, too.
    takes: Vec<onebuf::Device>,
}

/// Behind the name of a device that is to have a copy of its own.
const STAGED: &str = "+staged";
/// Behind the name of one that is to see a device's memory, and copy nothing.
const ON_DEVICE: &str = "+device";
/// Behind the name of one that is to have a copy of another device's memory.
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

    /// The device sees the buffer as it should, or the test would say nothing of it.
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

    /// By a kernel where there is a device: `x * mul + add + i` of what the host wrote first.
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

    /// How many pages are not what the other process wrote, as this side's device sees them.
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

/// The second process: not a test, unless it is told to be one.
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
        // Looks at a buffer of its own instead: what must be found out.
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

/// Checks and writes until the owner has had enough.
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
        command.env(PART, part).env(SOCKET, self.socket()).env(DEVICE, device);
        command.stdout(Stdio::piped());
        command
    }

    fn spawn(&self, part: &str, device: &str) -> Second {
        Second(self.command(part, device).spawn().expect("it starts"))
    }
}

/// The other process; killed when the test is over.
struct Second(Child);

impl Second {
    /// What it says in a line that begins so.
    fn says(&mut self, beginning: &str) -> String {
        let out = self.0.stdout.as_mut().expect("piped");
        let mut heard = String::new();
        // Not a byte more than the line: what comes after it is for the next question.
        for line in BufReader::with_capacity(1, out).lines().map_while(|line| line.ok()) {
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
            heard += &line;
            heard.push('\n');
        }
        panic!("it never said `{beginning}`:\n{heard}");
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

/// A buffer as the owner's device wants it, in host pages.
fn buffer(hub: &Hub, hands: &Hands) -> Buffer<u32> {
    let builder = hands.builder(hub.buffer::<u32>(N));
    let builder = builder.memory_kind(onebuf::MemoryKind::HostPages).allocate_on(&hub.host());
    let buffer = builder.build().expect("host pages");
    hands.assert_route(&buffer);
    buffer
}

/// The owner's rounds; gives how many pages were wrong.
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

/// Who takes part: the host, and PoCL where it is, in place and with copies.
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
            let mut visit = offer.accept(SOON).unwrap();
            assert_eq!(visit.peer().pid, second.0.id());
            assert_eq!(own_rounds(&hands, &mut visit, 3).unwrap(), 0, "{mine} <- {theirs}");
            drop(visit);
            assert_eq!(second.says("wrong pages:"), "0", "{mine} -> {theirs}");
        }
    }
}

/// The control: a second process that looks at other memory finds every page wrong, and so does the owner.
#[test]
fn two_memories_are_found_out() {
    let _alone = alone();
    let (hub, stage) = (hub(), Stage::new());
    let hands = Hands::open(&hub, "host").unwrap();
    assert_found_out(&stage, &hands, &buffer(&hub, &hands), "host");
}

/// A second process that looks at other memory finds every page wrong, and so does the owner.
fn assert_found_out(stage: &Stage, hands: &Hands, buffer: &Buffer<u32>, theirs: &str) {
    let mut offer = Offer::open(buffer, stage.socket().to_str().unwrap()).unwrap();
    let mut second = stage.spawn("apart", theirs);
    let mut visit = offer.accept(SOON).unwrap();
    let pages = (buffer.len() * 4).div_ceil(4096);
    assert_eq!(own_rounds(hands, &mut visit, 1).unwrap(), pages);
    drop(visit);
    assert_eq!(second.says("wrong pages:"), pages.to_string());
}

/// Two offers would each have a peer whose turn it is.
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
            let mut visit = offer.accept(SOON).unwrap();
            buffer.fill(7).unwrap();
            visit.hand_over().unwrap();
            assert_eq!(second.says("writing"), "");
            assert!(matches!(buffer.to_vec(), Err(Error::Busy { .. })));
            second.kill();
            // Not `Timeout`: whoever waits is told at once.
            let error = visit.wait(Duration::from_secs(10)).unwrap_err();
            assert!(matches!(error, Error::PeerLost { .. }), "{error}");
            assert!(!visit.has_left());
            drop(visit);
            // Some of it may be the peer's, but every word is one that somebody wrote.
            let all = buffer.to_vec().unwrap();
            assert!(all.iter().all(|&word| word == 7 || word == u32::MAX), "round {round}");
            hands.write(&buffer, 1, 2).unwrap();
            assert_eq!(hands.wrong_pages(&buffer, 1, 2).unwrap(), 0, "round {round}");
            drop(second);
            fds.push(open_fds());
        }
        assert!(fds.iter().all(|&count| count == fds[1]), "fds leak on {device}: {fds:?}");
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
    assert!(fds.iter().all(|&count| count == fds[1]), "fds leak: {fds:?}");
}

/// Needs root, to be two users.
#[test]
fn another_user_is_refused_unless_allowed() {
    let _alone = alone();
    const NOBODY: u32 = 65534;
    // The owner of a file that this process makes is this process.
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
    // The program must be one that the other user may run.
    let program = stage.folder.path().join("second");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let spawn = |trust: &str| {
        let open = |path: PathBuf, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        // Closed when it was checked, opened now: what is left is the check of the user.
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
    // And the other way round: it does not trust an owner of another user either.
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
