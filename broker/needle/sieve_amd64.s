#include "textflag.h"

// HALF puts a bit into mask for each of the 32 octets at off(SI) that introduces nothing that
// the octet behind it goes on with. An octet above 0x7f gives nothing.
#define HALF(off, c, next, bits, mask) \
	VMOVDQU   (off)(SI), c \
	VMOVDQU   (off+1)(SI), next \
	VPSHUFB   c, Y0, bits \
	VPSRLW    $4, c, c \
	VPAND     Y4, c, c \
	VPSHUFB   c, Y1, c \
	VPAND     c, bits, bits \
	VPSHUFB   next, Y2, c \
	VPSRLW    $4, next, next \
	VPAND     Y4, next, next \
	VPSHUFB   next, Y3, next \
	VPAND     c, bits, bits \
	VPAND     next, bits, bits \
	VPCMPEQB  Y5, bits, bits \
	VPMOVMSKB bits, mask

// func sieveAVX2(text []byte, t *sieve, masks []uint64) (n int)
TEXT ·sieveAVX2(SB), NOSPLIT, $0-64
	MOVQ text_base+0(FP), SI
	MOVQ text_len+8(FP), CX
	MOVQ t+24(FP), DX
	MOVQ masks_base+32(FP), R8
	MOVQ masks_len+40(FP), R9
	DECQ CX
	SHRQ $6, CX        // of the text: there are 64 octets and one behind
	CMPQ CX, R9
	CMOVQGT R9, CX
	MOVQ CX, n+56(FP)
	TESTQ CX, CX
	JEQ  done
	VBROADCASTI128 (DX), Y0
	VBROADCASTI128 16(DX), Y1
	VBROADCASTI128 32(DX), Y2
	VBROADCASTI128 48(DX), Y3
	VPCMPEQB Y4, Y4, Y4
	VPSRLW $12, Y4, Y4
	VPSLLW $8, Y4, Y5
	VPOR Y5, Y4, Y4   // 0x0f in each octet
	VPXOR Y5, Y5, Y5

block:
	HALF(0, Y6, Y7, Y8, R10)
	HALF(32, Y9, Y10, Y11, R11)
	SHLQ $32, R11
	ORQ  R11, R10
	NOTQ R10
	MOVQ R10, (R8)
	ADDQ $8, R8
	ADDQ $64, SI
	DECQ CX
	JNE  block
	VZEROUPPER

done:
	RET
