//! What is trained: a network with one hidden layer that learns a function of its inputs. Everything follows from a seed, so that two runs
//! with the same data end with the same weights, to the bit.

/// Sizes of the layers.
const INPUTS: usize = 32;
const HIDDEN: usize = 512;
/// Samples of a rank's batch.
const BATCH: usize = 16;
/// The step of gradient descent.
const RATE: f32 = 0.05;

/// All weights: those of the hidden layer, its biases, and those of the output.
const WEIGHTS: usize = INPUTS * HIDDEN + HIDDEN + HIDDEN;

/// Random numbers by the generator of `SplitMix64`.
struct Random(u64);

impl Random {
    /// From -1 to 1.
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// The network.
pub struct Model {
    weights: Vec<f32>,
}

impl Model {
    pub fn new() -> Self {
        let mut random = Random(1);
        let scale = (1.0 / INPUTS as f32).sqrt();
        Self { weights: (0..WEIGHTS).map(|_| random.next() * scale).collect() }
    }

    pub const fn len() -> usize {
        WEIGHTS
    }

    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Goes on with the weights of a checkpoint.
    pub fn load(&mut self, weights: &[f32]) {
        self.weights.copy_from_slice(weights);
    }

    /// What is to be learnt.
    fn target(inputs: &[f32]) -> f32 {
        inputs.chunks(2).map(|pair| pair.iter().product::<f32>()).sum::<f32>()
    }

    /// Adds up the gradient of the squared error over a rank's batch of this step, and returns the mean error.
    pub fn gradient(&self, rank: usize, step: u64, gradient: &mut [f32]) -> f32 {
        gradient.fill(0.0);
        let mut random = Random(step.wrapping_mul(1_000_003).wrapping_add(rank as u64 + 7));
        let (first, rest) = self.weights.split_at(INPUTS * HIDDEN);
        let (biases, last) = rest.split_at(HIDDEN);
        let (d_first, d_rest) = gradient.split_at_mut(INPUTS * HIDDEN);
        let (d_biases, d_last) = d_rest.split_at_mut(HIDDEN);
        let mut hidden = [0.0_f32; HIDDEN];
        let mut loss = 0.0;
        for _ in 0..BATCH {
            let inputs: [f32; INPUTS] = std::array::from_fn(|_| random.next());
            for ((unit, row), bias) in hidden.iter_mut().zip(first.chunks(INPUTS)).zip(biases) {
                let sum: f32 = row.iter().zip(&inputs).map(|(weight, input)| weight * input).sum();
                *unit = (sum + bias).tanh();
            }
            let output: f32 = hidden.iter().zip(last).map(|(unit, weight)| unit * weight).sum();
            let error = output - Self::target(&inputs);
            loss += error * error;
            let slope = 2.0 * error / BATCH as f32;
            let units = hidden.iter().zip(last).zip(d_last.iter_mut().zip(d_biases.iter_mut()));
            for (((unit, weight), (d_last, d_bias)), d_row) in units.zip(d_first.chunks_mut(INPUTS)) {
                *d_last += slope * unit;
                let d_unit = slope * weight * (1.0 - unit * unit);
                *d_bias += d_unit;
                d_row.iter_mut().zip(&inputs).for_each(|(d_weight, input)| *d_weight += d_unit * input);
            }
        }
        loss / BATCH as f32
    }

    /// Takes the step that the sum of all ranks' gradients says.
    pub fn update(&mut self, sum: &[f32], ranks: usize) {
        let rate = RATE / ranks as f32;
        self.weights.iter_mut().zip(sum).for_each(|(weight, slope)| *weight -= rate * slope);
    }

    /// A number that two equal models share (FNV-1a).
    pub fn hash(&self) -> u64 {
        let bytes = self.weights.iter().flat_map(|weight| weight.to_bits().to_le_bytes());
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }
}
