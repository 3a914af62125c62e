#include "textflag.h"

// func sieveAVX2(text []byte, t *sieve, masks []uint32) (n int)
TEXT ·sieveAVX2(SB), NOSPLIT, $0-64
	MOVQ text_base+0(FP), SI
	MOVQ text_len+8(FP), CX
	MOVQ t+24(FP), DX
	MOVQ masks_base+32(FP), R8
	MOVQ masks_len+40(FP), R9
	VBROADCASTI128 (DX), Y0
	VBROADCASTI128 16(DX), Y1
	VBROADCASTI128 32(DX), Y2
	VBROADCASTI128 48(DX), Y3
	VBROADCASTI128 64(DX), Y10
	VBROADCASTI128 80(DX), Y11
	VBROADCASTI128 96(DX), Y12
	VBROADCASTI128 112(DX), Y13
	VPCMPEQB Y4, Y4, Y4
	VPSRLW $12, Y4, Y4
	VPSLLW $8, Y4, Y5
	VPOR Y5, Y4, Y4   // 0x0f in each octet
	VPXOR Y5, Y5, Y5
	XORQ AX, AX       // place
	XORQ R10, R10     // and number of a block
	SUBQ $35, CX      // the last place at which 32 octets, the one before and two behind are there

block:
	CMPQ AX, CX
	JGT  done
	CMPQ R10, R9
	JGE  done
	VMOVDQU 1(SI)(AX*1), Y6
	VMOVDQU 2(SI)(AX*1), Y7

	// What an octet introduces, by its halves. An octet above 0x7f gives nothing.
	VPSHUFB Y6, Y0, Y8
	VPSRLW  $4, Y6, Y6
	VPAND   Y4, Y6, Y6
	VPSHUFB Y6, Y1, Y6
	VPAND   Y8, Y6, Y6

	// What the one behind may follow.
	VPSHUFB Y7, Y2, Y8
	VPSRLW  $4, Y7, Y7
	VPAND   Y4, Y7, Y7
	VPSHUFB Y7, Y3, Y7
	VPAND   Y8, Y7, Y7

	VPAND     Y7, Y6, Y6
	VPTEST    Y6, Y6
	JNE       closer
	MOVL      $0, (R8)(R10*4)
	INCQ      R10
	ADDQ      $32, AX
	JMP       block

closer:
	// The one behind that, and the one before.
	VMOVDQU 3(SI)(AX*1), Y7
	VPAND   Y4, Y7, Y8
	VPSHUFB Y8, Y10, Y8
	VPSRLW  $4, Y7, Y7
	VPAND   Y4, Y7, Y7
	VPSHUFB Y7, Y11, Y7
	VPAND   Y8, Y6, Y6
	VPAND   Y7, Y6, Y6
	VMOVDQU (SI)(AX*1), Y7
	VPAND   Y4, Y7, Y8
	VPSHUFB Y8, Y12, Y8
	VPSRLW  $4, Y7, Y7
	VPAND   Y4, Y7, Y7
	VPSHUFB Y7, Y13, Y7
	VPAND   Y8, Y6, Y6
	VPAND   Y7, Y6, Y6

	VPCMPEQB  Y5, Y6, Y6
	VPMOVMSKB Y6, BX
	NOTL      BX
	MOVL      BX, (R8)(R10*4)
	INCQ      R10
	ADDQ      $32, AX
	JMP       block

done:
	VZEROUPPER
	MOVQ R10, n+56(FP)
	RET
