/* All kernels of one instruction set; included by the file that chooses it. */
#include "codec.h"
#include "lanes.h"

#include "half.h"

#include "f32.h"
#include "plain.h"
#include "q1_0.h"
#include "q2_0.h"
#include "symmetric.h"
#include "affine.h"
#include "q8_0.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_k.h"
#include "q5_k.h"
#include "q6_k.h"
#include "iq1_s.h"
#include "iq1_m.h"
#include "iq2_xxs.h"
#include "iq2_xs.h"
#include "iq2_s.h"
#include "iq3_xxs.h"
#include "iq3_s.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "tq1_0.h"
#include "tq2_0.h"
#include "mxfp4.h"
#include "nvfp4.h"
/* one include for each encoding, in the order of weightctl's table */

#include "blocks.h"
#include "words.h"
#include "product.h"
#include "tile_products.h"
#include "transcode.h"
#include "runs.h"
#include "doubts.h"
#include "feedback.h"

static const struct codec codecs[] = {
    {"F32", 1, 4, 0, f32_encode, f32_decode},
    {"F16", 1, 2, 0, f16_encode, f16_decode},
    {"BF16", 1, 2, 0, bf16_encode, bf16_decode},
    {"F8_E4M3", 1, 1, 0, f8_e4m3_encode, f8_e4m3_decode},
    {"F8_E5M2", 1, 1, 0, f8_e5m2_encode, f8_e5m2_decode},
    {"F8_E4M3FNUZ", 1, 1, 0, f8_e4m3fnuz_encode, f8_e4m3fnuz_decode},
    {"F8_E5M2FNUZ", 1, 1, 0, f8_e5m2fnuz_encode, f8_e5m2fnuz_decode},
    {"Q1_0", 128, Q1_0_SIZE, 1, q1_0_encode, q1_0_decode},
    {"Q2_0", 64, Q2_0_SIZE, 1, q2_0_encode, q2_0_decode},
    {"Q4_0", 32, Q4_0_SIZE, 1, q4_0_encode, q4_0_decode},
    {"Q4_1", 32, Q4_1_SIZE, 1, q4_1_encode, q4_1_decode},
    {"Q5_0", 32, Q5_0_SIZE, 1, q5_0_encode, q5_0_decode},
    {"Q5_1", 32, Q5_1_SIZE, 1, q5_1_encode, q5_1_decode},
    {"Q8_0", 32, Q8_0_SIZE, 1, q8_0_encode, q8_0_decode},
    {"Q2_K", 256, Q2_K_SIZE, 1, q2_k_encode, q2_k_decode},
    {"Q3_K", 256, Q3_K_SIZE, 1, q3_k_encode, q3_k_decode},
    {"Q4_K", 256, Q4_K_SIZE, 1, q4_k_encode, q4_k_decode},
    {"Q5_K", 256, Q5_K_SIZE, 1, q5_k_encode, q5_k_decode},
    {"Q6_K", 256, Q6_K_SIZE, 1, q6_k_encode, q6_k_decode},
    {"IQ1_S", 256, IQ1_S_SIZE, REQUIRED, iq1_s_encode, iq1_s_decode},
    {"IQ1_M", 256, IQ1_M_SIZE, 1, iq1_m_encode, iq1_m_decode},
    {"IQ2_XXS", 256, IQ2_XXS_SIZE, REQUIRED, iq2_xxs_encode, iq2_xxs_decode},
    {"IQ2_XS", 256, IQ2_XS_SIZE, REQUIRED, iq2_xs_encode, iq2_xs_decode},
    {"IQ2_S", 256, IQ2_S_SIZE, 1, iq2_s_encode, iq2_s_decode},
    {"IQ3_XXS", 256, IQ3_XXS_SIZE, 1, iq3_xxs_encode, iq3_xxs_decode},
    {"IQ3_S", 256, IQ3_S_SIZE, 1, iq3_s_encode, iq3_s_decode},
    {"IQ4_NL", 32, IQ4_NL_SIZE, 1, iq4_nl_encode, iq4_nl_decode},
    {"IQ4_XS", 256, IQ4_XS_SIZE, 1, iq4_xs_encode, iq4_xs_decode},
    {"TQ1_0", 256, TQ1_0_SIZE, 1, tq1_0_encode, tq1_0_decode},
    {"TQ2_0", 256, TQ2_0_SIZE, 1, tq2_0_encode, tq2_0_decode},
    {"MXFP4", 32, MXFP4_SIZE, 1, mxfp4_encode, mxfp4_decode},
    {"NVFP4", 64, NVFP4_SIZE, 1, nvfp4_encode, nvfp4_decode},
    {NULL, 0, 0, 0, NULL, NULL},
};
