//! Self-test of a device: a known vector through the kernels, compared with the host.

use briquette_core::compress::{Compressor, min_max::MinMax, qsgd::Qsgd, scaled_sign::ScaledSign, top_k::TopK};
use briquette_core::{Key, Message, math};

use crate::error::DeviceError;
use crate::run::Run;
use crate::sums::{Groups, Terms, sums};
use crate::{encode, feed};

/// Length of the vector: more than two tiles, no whole block.
const LEN: usize = 9001;

impl Run {
    /// Compares the device with the host: a selection, codes, random bits, sums in f64, products that are added, and a division. Takes
    /// milliseconds, and the time to compile these kernels.
    ///
    /// # Errors
    /// [`DeviceError::Differs`] names the operation with other bits, [`DeviceError::Failed`] is a kernel that failed.
    pub fn check(&self) -> Result<(), DeviceError> {
        let device = self.client().name();
        let differs = |what: &'static str| {
            move |same: bool| if same { Ok(()) } else { Err(DeviceError::Differs { device, what }) }
        };
        // Thirds have long significands of all magnitudes.
        let x: Vec<f32> = (0..LEN).map(|i| (i as f32 * 0.7).sin() / 3.0 * 2_f32.powi((i % 23) as i32 - 11)).collect();
        let (vector, key) = (self.upload(&x), Key::new(1));
        let mut twins: Vec<(&'static str, Box<dyn Compressor>, crate::Encoded)> = Vec::new();
        let (levels, bucket) = (5, 300);
        let qsgd = Qsgd::with_levels(levels, bucket, briquette_core::compress::Norm::Max).expect("valid settings");
        let top_k = TopK::fraction(0.01).expect("a share");
        let k = top_k.nominal().keep(LEN);
        twins.push(("the largest values", Box::new(top_k), encode::top_k(self, &vector, k)));
        twins.push(("8-bit codes", Box::new(MinMax::new()), encode::min_max(self, &vector, 256)));
        let dithered = encode::qsgd(self, &vector, (levels, bucket), encode::Norm::Max, key)?;
        twins.push(("random rounding", Box::new(qsgd), dithered));
        twins.push(("mean magnitudes", Box::new(ScaledSign::new()), encode::scaled_sign(self, &vector, None)));
        let mut average = vec![0.1; LEN];
        let on_device = self.upload(&average);
        for (what, mut compressor, encoded) in twins {
            let (mut host, mut made) = (Message::default(), Message::default());
            compressor.compress_into(&x, key, &mut host);
            let message = encoded.read(self, &mut made)?;
            differs(what)(host == made)?;
            host.add_to(1.0 / 3.0, &mut average)?;
            message.add(self, 1.0 / 3.0, &on_device, 0);
        }
        let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        differs("averages")(bits(&self.read(&on_device)?) == bits(&average))?;
        let (weight, mut fed) = (0.7, vec![0.0; LEN]);
        let [energy, _] = math::add_scaled(&average, weight, &x, &mut fed);
        let sum = feed::copy(self, &vector, 0..LEN);
        feed::feed(self, &sum, &on_device, weight, 0..LEN);
        differs("weighted sums")(bits(&self.read(&sum)?) == bits(&fed))?;
        let energies = sums(self, &sum, &Groups::new(self, [LEN]), Terms::Squares).read(self)?;
        differs("sums of squares")(energies[0].to_bits() == energy.to_bits())
    }
}
