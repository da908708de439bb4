//! Many queues, in order and out of order, on the same buffers: in whatever order the work runs, the results
//! are those of the program's order.

use super::queues::{no_such_queues, out_of_order};
use crate::{
    Ending, GROUP, Random, Side, Step, Trial, assert_same, fake_machine, kernels, note, step_model,
};
use onebuf::{
    Access, Buffer, Hub, Kernel, Result, Signature, args,
    fake::{Delay, FakeConfig},
};
use std::time::Duration;

const N: usize = 5 * GROUP;
const BUFFERS: usize = 4;

/// Several queues of one device, and buffers with their models.
struct Rig<'m> {
    sides: Vec<Side>,
    add: Kernel,
    hub: &'m Hub,
    buffers: Vec<Buffer<u32>>,
    models: Vec<Vec<u32>>,
}

/// `kernel void add(global const uint *from, global uint *to)`: creates a dependency between two buffers.
fn add(side: &Side) -> Result<Kernel> {
    const TEXT: &str = "kernel void add(global const uint *from, global uint *to) {
        size_t i = get_global_id(0);
        to[i] = to[i] * 3u + from[i];
    }";
    let source = kernels(TEXT).with_native("add", |args| {
        let (from, to) = args.pair::<u32, u32>(0, 1)?;
        add_model(from, to);
        Ok(())
    });
    let signature = Signature::new().each::<u32>(Access::Read).each::<u32>(Access::ReadWrite);
    // SAFETY: work-item i touches element i of each buffer.
    unsafe { side.device.program(&source)?.kernel("add", signature) }
}

fn add_model(from: &[u32], to: &mut [u32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = to.wrapping_mul(3).wrapping_add(*from));
}

impl<'m> Rig<'m> {
    fn new(hub: &'m Hub, sides: Vec<Side>) -> Self {
        let build = |_| hub.buffer::<u32>(N).shared_with([&sides[0].device]).build().unwrap();
        let buffers: Vec<_> = (0..BUFFERS).map(build).collect();
        let models = vec![vec![0; N]; BUFFERS];
        Self { add: add(&sides[0]).unwrap(), sides, hub, buffers, models }
    }

    /// Does one random piece of work on a random queue.
    fn act(&mut self, random: &mut Random) {
        let (from, to) = (random.below(BUFFERS), random.below(BUFFERS));
        let side = random.below(self.sides.len());
        match random.below(8) {
            0..3 => self.step(side, to, random.word()),
            3..5 if from != to => self.add(side, from, to),
            5 if from != to => self.keep_views(side, from, to, random.word()),
            6 => self.by_host(to, random.word()),
            _ => assert_same(&self.buffers[to].to_vec().unwrap(), &self.models[to], "on the way"),
        }
    }

    fn step(&mut self, side: usize, at: usize, n: u32) {
        self.sides[side].step(&self.buffers[at], Step::nth(n)).unwrap();
        step_model(&mut self.models[at], Step::nth(n));
    }

    fn add(&mut self, side: usize, from: usize, to: usize) {
        let queue = &self.sides[side].queue;
        let (a, b) = (&self.buffers[from], &self.buffers[to]);
        let views = args![a.read_on(queue).unwrap(), b.write_on(queue).unwrap()];
        queue.launch(&self.add, [N], views).unwrap();
        let from = self.models[from].clone();
        add_model(&from, &mut self.models[to]);
    }

    /// Uses the same views for several launches.
    fn keep_views(&mut self, side: usize, from: usize, to: usize, n: u32) {
        let (queue, kernel) = (&self.sides[side].queue, self.sides[side].kernel());
        let step = Step::nth(n);
        let (a, b) = (&self.buffers[from], &self.buffers[to]);
        let added = args![a.read_on(queue).unwrap(), b.write_on(queue).unwrap()];
        for _ in 0..3 {
            queue.launch(&self.add, [N], &added).unwrap();
        }
        drop(added);
        let stepped = args![b.write_on(queue).unwrap(), 0u32, N as u32, step.mul, step.add];
        queue.launch(kernel, [N], &stepped).unwrap();
        queue.launch(kernel, [N], &stepped).unwrap();
        drop(stepped);
        let from = self.models[from].clone();
        (0..3).for_each(|_| add_model(&from, &mut self.models[to]));
        (0..2).for_each(|_| step_model(&mut self.models[to], step));
    }

    fn by_host(&mut self, at: usize, word: u32) {
        if word.is_multiple_of(2) {
            self.buffers[at].map_mut().unwrap()[7] = word;
            self.models[at][7] = word;
        } else {
            self.buffers[at].write_range(10..20, &[word; 10]).unwrap();
            self.models[at][10..20].fill(word);
        }
    }

    fn check(&self, what: &str) {
        for (index, (buffer, model)) in self.buffers.iter().zip(&self.models).enumerate() {
            assert_same(&buffer.to_vec().unwrap(), model, &format!("{what}, buffer {index}"));
        }
        assert_eq!(self.hub.devices()[0].id(), "host");
    }
}

/// Opens two out-of-order queues and one in-order queue.
fn three(side: &Side) -> Option<Vec<Side>> {
    Some(vec![out_of_order(side)?, out_of_order(side)?, Side::open(&side.device).unwrap()])
}

pub fn random_work_on_every_device_comes_out_as_the_model_says(t: &Trial<'_>) {
    t.each_device(|side| {
        for seed in 0..10 {
            let Some(sides) = three(side) else { return no_such_queues() };
            let mut rig = Rig::new(t.hub(), sides);
            let mut random = Random::new(seed);
            (0..60).for_each(|_| rig.act(&mut random));
            rig.check(&format!("{}, seed {seed}", side.device));
        }
        Ending::Passed
    });
}

/// The fake device shuffles unordered work: many seeds, each in a separate hub.
pub fn random_work_on_a_device_that_shuffles(t: &Trial<'_>) {
    const SEEDS: u64 = 150;
    if !t.has_api("fake") {
        return;
    }
    for seed in 0..SEEDS {
        let delay = Delay::Random { seed, max: Duration::from_micros(20) };
        let machine = fake_machine(FakeConfig { delay, ..FakeConfig::default() });
        let side = machine.side("fake:0");
        t.on(&[side], format!("seed {seed}"), || {
            let mut rig = Rig::new(&machine.hub, three(side).expect("out-of-order queues"));
            let mut random = Random::new(seed);
            (0..40).for_each(|_| rig.act(&mut random));
            rig.check(&format!("seed {seed}"));
        });
    }
    note(&format!("{SEEDS} seeds on a device that shuffles"));
}

pub fn two_independent_chains_on_one_queue(t: &Trial<'_>) {
    t.each_device(|side| {
        let Some(one) = out_of_order(side) else { return no_such_queues() };
        let mut rig = Rig::new(t.hub(), vec![one]);
        for round in 0..30 {
            rig.step(0, 0, 2 * round);
            rig.step(0, 2, 2 * round + 1);
            rig.add(0, 0, 1);
            rig.add(0, 2, 3);
        }
        rig.check(side.device.id());
        Ending::Passed
    });
}

/// The control: a chain in another order has another result. The cases of `queues` show that queues do shuffle.
pub fn the_steps_of_a_chain_do_not_commute(t: &Trial<'_>) {
    t.together(|| {
        let steps: Vec<Step> = (1..9).map(Step::nth).collect();
        let mut model = vec![0; N];
        steps.iter().for_each(|step| step_model(&mut model, *step));
        let mut turned = vec![0; N];
        steps.iter().rev().for_each(|step| step_model(&mut turned, *step));
        assert_ne!(model, turned, "steps that commute would prove nothing");
    });
}
