//! The kernels of a [`Transform`](crate::Transform): what they load and store around [`Stockham`]'s statements, and
//! their signatures.

use crate::{
    Interpolator,
    stockham::{HEAD, Stockham},
};
use onebuf::{Access, Call, Complex32, Signature};

/// A sample, delayed by the taps `h` and windowed. Where a sample is before the channel's first, its unsigned number is beyond
/// the last, and the signal is zero at both.
const DELAYED: &str = "
float2 delayed(uint i, const float *h, uint shift, SPACE const float2 *x, global const float *window) {
    float2 sum = (float2)(0.0f, 0.0f);
    UNROLL
    for (uint tap = 0; tap <= ORDER; tap++) TAP
    return window[i] * sum;
}
#define TABLES , global const float2 *restrict places, global const float *restrict window
";

/// Reads samples from global memory; or from local memory if a group has whole channels there, so that each sample is read once.
/// There the samples are stored already shifted, with those that the last taps need and zeroes around the channel: taps have
/// constant distances, and nothing is compared.
const DIRECT: &str = "#define SPACE global
#define TAP if (i + shift + tap < CHANNEL) sum += h[tap] * x[i + shift + tap];
#define SAMPLE(i) delayed(i, h, shift, from, window)
";
const STAGED: &str = "#define SPACE local
#define TAP sum += h[tap] * x[i + tap];
#define STAGE(i) (column * (LEN + ORDER) + (i))
#define FETCH(i) (inside && (i) + shift < CHANNEL ? from[(i) + shift] : (float2)(0.0f, 0.0f))
#define SAMPLE(i) delayed(i, h, shift, x + column * (LEN + ORDER), window)
";

/// The delay of the channel that a work-item loads.
const PLACE: &str = "
    float mu = places[own].y;
    uint shift = (uint)(int)places[own].x;
";

/// Channels beyond the last one are zero, and are not stored.
const WHOLE: &str = "
#define PLACE(at) PADDED(column * LEN + (at))
#define LOAD(i) (inside ? SAMPLE(i) : (float2)(0.0f, 0.0f))
#define STORE(j, value) if (inside) from[j] = value
kernel __attribute__((reqd_work_group_size(ITEMS * COLUMNS, 1, 1)))
void fft(global float2 *restrict signal, global const float2 *restrict turns TABLES, uint channels) {
    uint t = get_local_id(0) % ITEMS, column = get_local_id(0) / ITEMS;
    uint channel = (uint)get_group_id(0) * COLUMNS + column;
    bool inside = channel < channels;
    uint own = inside ? channel : 0;
    global float2 *from = signal + (size_t)own * CHANNEL;
";

/// The launch processes the channels from `first` on; the scratch memory starts with the first of them. `turns` holds two tables:
/// of the columns' length, and of the channel's length, as many entries as there are columns. A turn by k of N1 N2 is the product
/// of one entry of each.
const BY_COLUMNS: &str = "
#define PLACE(at) PADDED((at) * COLUMNS + column)
#define LOAD(i) SAMPLE((i) * ACROSS + at)
#define TURN(k) times(turns[(k) / ACROSS], turns[LEN + (k) % ACROSS])
#define STORE(j, value) to[(j) * COLUMNS] = times(value, TURN(at * (j)))
kernel __attribute__((reqd_work_group_size(ITEMS * COLUMNS, 1, 1)))
void fft(global const float2 *signal, global float2 *scratch, global const float2 *restrict turns TABLES,
         uint first) {
    uint t = get_local_id(0) / COLUMNS, column = get_local_id(0) % COLUMNS;
    uint part = get_group_id(0) / (ACROSS / COLUMNS), panel = get_group_id(0) % (ACROSS / COLUMNS);
    uint own = first + part, at = panel * COLUMNS + column;
    global const float2 *from = signal + (size_t)own * CHANNEL;
    global float2 *to = scratch + (size_t)part * CHANNEL + panel * COLUMNS * LEN + column;
";

const BY_ROWS: &str = "
#define PLACE(at) PADDED((at) * COLUMNS + column)
#define LOAD(i) from[(i) / PANEL * PANEL * ACROSS + (i) % PANEL]
#define STORE(j, value) to[(j) * ACROSS] = value
kernel __attribute__((reqd_work_group_size(ITEMS * COLUMNS, 1, 1)))
void fft(global const float2 *scratch, global float2 *signal, global const float2 *restrict turns,
         uint first) {
    uint t = get_local_id(0) / COLUMNS, column = get_local_id(0) % COLUMNS;
    uint part = get_group_id(0) / (ACROSS / COLUMNS), block = get_group_id(0) % (ACROSS / COLUMNS);
    uint at = block * COLUMNS + column;
    global const float2 *from = scratch + (size_t)part * CHANNEL + at * PANEL;
    global float2 *to = signal + (size_t)(first + part) * CHANNEL + at;
";

/// The part of a channel's transform that a kernel computes.
#[derive(Clone, Copy)]
pub struct Pass {
    pub part: Part,
    /// Samples of a channel.
    pub channel: usize,
    pub plan: Stockham,
    /// Width of the panels of the scratch memory.
    pub panel: usize,
    /// Delays samples by this interpolator as they are loaded, and also windows them.
    pub with: Option<Interpolator>,
    /// Whether loops over taps are unrolled. CPUs have too few registers for that.
    pub unrolled: bool,
}

/// The transforms that a kernel computes.
#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    Whole,
    Columns,
    Rows,
}

impl Pass {
    /// Number of transforms of a channel.
    fn across(&self) -> usize {
        self.channel / self.plan.length
    }

    /// Whether samples are delayed from local memory.
    fn is_staged(&self) -> bool {
        let whole = self.part == Part::Whole && self.plan.items() > 1 && !self.plan.split;
        whole && self.with.is_some()
    }

    /// Number of groups for this many channels.
    pub fn groups(&self, channels: usize) -> usize {
        (channels * self.across()).div_ceil(self.plan.columns)
    }

    /// Minimum number of elements of each buffer of a launch.
    fn wanted(&self, call: &Call<'_>) -> Option<Vec<usize>> {
        let [items, 1, 1] = call.global() else { return None };
        let (channel, tables) = (self.channel, if self.with.is_some() { 2 } else { 0 });
        let number = |at: usize| call.value::<u32>(at + tables).map(|number| number as usize);
        let here = (items / self.plan.group() * self.plan.columns).div_ceil(self.across());
        let (mut wanted, channels) = match self.part {
            Part::Whole => {
                let channels = number(2)?;
                (vec![channels * channel, channel], channels)
            }
            Part::Columns => {
                let channels = number(3)? + here;
                let turns = self.plan.length + self.across();
                (vec![channels * channel, here * channel, turns], channels)
            }
            Part::Rows => {
                let channels = number(3)? + here;
                (vec![here * channel, channels * channel, self.plan.length], channels)
            }
        };
        wanted.extend([channels, channel].iter().take(tables));
        Some(wanted)
    }

    /// The kernel's signature. Launches with smaller buffers are refused.
    pub fn signature(&self) -> Signature {
        let (pass, fits) = (*self, "more than a buffer or a table has");
        let signature = match self.part {
            Part::Whole => Signature::new().buffer::<Complex32>(Access::ReadWrite),
            _ => Signature::new()
                .buffer::<Complex32>(Access::Read)
                .buffer::<Complex32>(Access::Write),
        };
        let signature = signature.buffer::<Complex32>(Access::Read);
        let signature = match self.with.is_some() {
            true => signature.buffer::<[f32; 2]>(Access::Read).buffer::<f32>(Access::Read),
            false => signature,
        };
        signature.value::<u32>().require(move |call| {
            let wanted = pass.wanted(call).ok_or("channels go along one dimension")?;
            let held = wanted.into_iter().enumerate().all(|(at, many)| many <= call.len(at));
            if held { Ok(()) } else { Err(fits.into()) }
        })
    }

    /// The kernel in OpenCL C.
    pub fn text(&self) -> String {
        let numbers = [("CHANNEL", self.channel), ("ACROSS", self.across()), ("PANEL", self.panel)];
        let numbers = numbers.map(|(name, value)| format!("#define {name} {value}u\n")).concat();
        let (before, taps) = match self.with {
            None => ("#define TABLES\n#define SAMPLE(i) from[i]\n".into(), String::new()),
            Some(with) => (self.delayed(with), format!("{PLACE}{}", with.statements())),
        };
        let kernel = match self.part {
            Part::Whole => WHOLE,
            Part::Columns => BY_COLUMNS,
            Part::Rows => BY_ROWS,
        };
        let (macros, statements) = (self.plan.macros(), self.plan.statements(self.is_staged()));
        format!("{numbers}{macros}{HEAD}{before}{kernel}{taps}{statements}}}\n")
    }

    fn delayed(&self, with: Interpolator) -> String {
        let unroll = if self.unrolled { "_Pragma(\"unroll\")" } else { "" };
        let sizes = format!("#define ORDER {}u\n#define UNROLL {unroll}\n", with.order());
        format!("{sizes}{}{DELAYED}", if self.is_staged() { STAGED } else { DIRECT })
    }
}
