#include "textflag.h"

// func sieveAVX2(text []byte, t *sieve) (at int, mask uint32)
TEXT ·sieveAVX2(SB), NOSPLIT, $0-44
	MOVQ text_base+0(FP), SI
	MOVQ text_len+8(FP), CX
	MOVQ t+24(FP), DX
	VBROADCASTI128 (DX), Y0
	VBROADCASTI128 16(DX), Y1
	VBROADCASTI128 32(DX), Y2
	VBROADCASTI128 48(DX), Y3
	VPCMPEQB Y4, Y4, Y4
	VPSRLW $12, Y4, Y4
	VPSLLW $8, Y4, Y5
	VPOR Y5, Y4, Y4   // 0x0f in each octet
	VPXOR Y5, Y5, Y5
	XORQ AX, AX
	XORL BX, BX
	SUBQ $33, CX      // the last place at which 32 octets and the one behind are there

block:
	CMPQ AX, CX
	JGT  done
	VMOVDQU (SI)(AX*1), Y6
	VMOVDQU 1(SI)(AX*1), Y7

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
	VPCMPEQB  Y5, Y6, Y6
	VPMOVMSKB Y6, BX
	NOTL      BX
	TESTL     BX, BX
	JNE       done
	ADDQ      $32, AX
	JMP       block

done:
	VZEROUPPER
	MOVQ AX, at+32(FP)
	MOVL BX, mask+40(FP)
	RET
